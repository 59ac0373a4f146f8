//! The worker's side: the enqueue loop, and the control thread beside it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::Timespec;
use rustix::thread::futex;

use crate::error::{GpuError, Result, StaleReason};
use crate::executor::backend::{Backend, Frame, MAX_STREAMS, Segments, StartConfig};
use crate::executor::cuda::CudaBackend;
use crate::executor::host::HostBackend;
use crate::executor::{ExecutorKind, SideTask, Step};
use crate::registry;

use super::channel::{Channel, FromWorker, Received, ToWorker};
use super::page::Page;
use super::ring::{Consumer, Producer, PushError};
use super::wire::{Mail, decode_frame, encode_mail};

/// How often errors are looked for while something is in flight.
const SWEEP: Duration = Duration::from_micros(250);

/// The main function of a worker process: the control channel is its standard input.
pub(super) fn process_main() -> ! {
    let socket = match rustix::io::dup(rustix::stdio::stdin()) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("atomr-cuda worker: no control channel on standard input: {error}");
            std::process::exit(2);
        }
    };
    let code = match run(Channel::from_fd(socket)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("atomr-cuda worker: {error}");
            1
        }
    };
    std::process::exit(code);
}

/// Runs a worker on this thread until it is told to end.
pub(super) fn run(channel: Channel) -> Result<()> {
    let channel = Arc::new(channel);
    let (config, page) = match channel.receive::<ToWorker>(true)? {
        Received::Message(ToWorker::Start(config), Some(fd)) => (config, Arc::new(Page::map(&fd)?)),
        Received::Closed => return Ok(()),
        _ => {
            return Err(GpuError::Protocol { side: "front".into(), reason: "the first message is not `Start`".into() });
        }
    };
    let backend = match make_backend(&config, &page) {
        Ok(backend) => backend,
        Err(error) => return channel.send(&FromWorker::StartFailed(error), None),
    };
    let raw = if config.in_process { backend.raw_handles() } else { None };
    channel.send(&FromWorker::Ready { info: backend.info(), raw }, None)?;

    let stop = Arc::new(AtomicBool::new(false));
    let stop_at_end = stop.clone();
    let (rehearse, rehearsals) = mpsc::channel();
    let control = Control {
        channel: channel.clone(),
        segments: backend.segments(),
        page: page.clone(),
        stop: stop.clone(),
        in_process: config.in_process,
        rehearse,
    };
    std::thread::Builder::new()
        .name("atomr-control".into())
        .spawn(move || control.serve())
        .map_err(|e| GpuError::io("starting the control thread", e))?;
    let ended = Enqueuer::new(backend, page.clone(), stop, rehearsals, &config).serve();
    if let Err(error) = &ended {
        page.leave_last_words(&postcard::to_allocvec(error).unwrap_or_default());
        // The front may be gone already; then nobody needs to know.
        let _ = channel.send(&FromWorker::Dying(error.clone()), None);
        if !config.in_process {
            if error.is_sticky() {
                // Taking a context down holds up the one that takes over; the front says when.
                while !stop_at_end.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            // Exit handlers would call into a dead context.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
    let _ = rustix::net::shutdown(channel.as_fd(), rustix::net::Shutdown::Both);
    ended
}

fn make_backend(config: &StartConfig, page: &Page) -> Result<Box<dyn Backend>> {
    Ok(match config.kind {
        ExecutorKind::Host => Box::new(HostBackend::new(config, page.shared())?),
        ExecutorKind::Cuda => Box::new(CudaBackend::new(config, page.shared())?),
    })
}

/// The control thread: segments come and go while the enqueue thread runs.
struct Control {
    channel: Arc<Channel>,
    segments: Arc<dyn Segments>,
    page: Arc<Page>,
    stop: Arc<AtomicBool>,
    in_process: bool,
    rehearse: mpsc::Sender<Frame>,
}

impl Control {
    fn serve(&self) {
        loop {
            let done = match self.channel.receive::<ToWorker>(true) {
                Ok(Received::Message(message, fd)) => self.handle(message, fd).unwrap_or(true),
                Ok(Received::Nothing) => false,
                Ok(Received::Closed) | Err(_) => {
                    if !self.in_process && !self.stop.load(Ordering::Acquire) {
                        // The application is gone, or has given this worker up.
                        std::process::exit(0);
                    }
                    true
                }
            };
            if done {
                self.stop.store(true, Ordering::Release);
                wake(self.page.sleeping());
                return;
            }
        }
    }

    /// `Ok(true)`: the worker is to end.
    fn handle(&self, message: ToWorker, fd: Option<OwnedFd>) -> Result<bool> {
        match message {
            ToWorker::CreateSegment { request, id, bytes } => {
                let (result, fd) = match self.segments.create(id, bytes) {
                    Ok(fd) => (Ok(()), Some(fd)),
                    Err(error) => (Err(error), None),
                };
                let fd = fd.as_ref().map(AsFd::as_fd);
                self.channel.send(&FromWorker::SegmentCreated { request, result }, fd)?;
            }
            ToWorker::MapSegment { id, space, bytes } => {
                let missing =
                    || GpuError::Protocol { side: "front".into(), reason: "a segment without descriptor".into() };
                let mapped = fd.ok_or_else(missing).and_then(|fd| self.segments.map(id, space, bytes, fd.as_fd()));
                if let Err(error) = mapped {
                    self.channel.send(&FromWorker::MapFailed { id, error }, None)?;
                }
            }
            ToWorker::DropSegments { ids } => {
                for id in ids {
                    self.segments.unmap(id)?;
                }
            }
            ToWorker::QueryMemory { request } => {
                let result = self.segments.memory();
                self.channel.send(&FromWorker::Memory { request, result }, None)?;
            }
            ToWorker::Rehearse { record } => {
                // A loop that has ended rehearses nothing more.
                let _ = self.rehearse.send(decode_frame(&record)?);
                wake(self.page.sleeping());
            }
            ToWorker::Shutdown => return Ok(true),
            ToWorker::Start(_) => {}
        }
        Ok(false)
    }
}

/// The low half of the word that the worker sleeps on, as the kernel wants it.
fn futex_word(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the low half of a little-endian, aligned 64-bit atomic is an aligned 32-bit atomic
    // with the same lifetime; the kernel and the other process only ever see atomic accesses.
    unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>() }
}

/// Wakes a worker that sleeps on `word`.
pub(super) fn wake(word: &AtomicU64) {
    // Not waking anybody is not an error.
    let _ = futex::wake(futex_word(word), futex::Flags::empty(), 1);
}

struct Lane {
    /// Frames that wait for a side task or for another stream; in order.
    queue: VecDeque<Frame>,
    /// A side task of the first frame is running.
    stalled: bool,
    enqueued: u64,
    published: u64,
}

struct Enqueuer {
    backend: Box<dyn Backend>,
    page: Arc<Page>,
    stop: Arc<AtomicBool>,
    spin: Duration,
    ops: Consumer,
    mail: Producer,
    lanes: Vec<Lane>,
    /// Buffers whose last writer failed here, and its name for the error.
    poisoned: HashMap<u64, String>,
    finished: mpsc::Receiver<(Frame, Result<()>)>,
    finish: mpsc::Sender<(Frame, Result<()>)>,
    side_tasks: usize,
    batched: u32,
    /// Streams whose counters are behind, as bits.
    behind: u32,
    rehearsals: mpsc::Receiver<Frame>,
}

impl Enqueuer {
    fn new(
        backend: Box<dyn Backend>,
        page: Arc<Page>,
        stop: Arc<AtomicBool>,
        rehearsals: mpsc::Receiver<Frame>,
        config: &StartConfig,
    ) -> Self {
        let (finish, finished) = mpsc::channel();
        let lane = || Lane { queue: VecDeque::new(), stalled: false, enqueued: 0, published: 0 };
        Enqueuer {
            backend,
            page,
            stop,
            spin: Duration::from_micros(config.spin_us.into()),
            ops: Consumer::default(),
            mail: Producer::default(),
            lanes: (0..MAX_STREAMS).map(|_| lane()).collect(),
            poisoned: HashMap::new(),
            finished,
            finish,
            side_tasks: 0,
            batched: 0,
            behind: 0,
            rehearsals,
        }
    }

    /// Works until it is told to end (`Ok`) or cannot go on (`Err`).
    fn serve(&mut self) -> Result<()> {
        let mut record = Vec::new();
        let mut idle_since: Option<Instant> = None;
        let mut last_sweep = Instant::now();
        let mut rounds = 0u32;
        loop {
            let popped = {
                let (at, words) = self.page.ops();
                self.ops.pop(&at, words, &mut record)
            };
            match popped {
                Ok(true) => {
                    let frame = decode_frame(&record)?;
                    self.accept(frame)?;
                    self.batched += 1;
                    if self.batched >= self.backend.batch() {
                        self.publish()?;
                    }
                    idle_since = None;
                    rounds = rounds.wrapping_add(1);
                    if !rounds.is_multiple_of(256) {
                        continue;
                    }
                }
                Ok(false) => {
                    self.publish()?;
                    self.resume()?;
                    if self.stop.load(Ordering::Acquire) && self.lanes.iter().all(|lane| lane.queue.is_empty()) {
                        return self.drain();
                    }
                    rounds = rounds.wrapping_add(1);
                    if !rounds.is_multiple_of(64) {
                        std::hint::spin_loop();
                        continue;
                    }
                    if idle_since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                        self.rehearse()?;
                        self.sleep();
                    }
                }
                Err(corrupt) => {
                    let reason = format!("the operation ring's position cannot be: {corrupt:?}");
                    return Err(GpuError::Protocol { side: "front".into(), reason });
                }
            }
            if last_sweep.elapsed() >= SWEEP {
                last_sweep = Instant::now();
                self.backend.sweep()?;
            }
        }
    }

    /// Takes one frame in: runs it, or queues it behind what its stream waits for.
    fn accept(&mut self, frame: Frame) -> Result<()> {
        match frame.stream {
            None => self.side(frame),
            Some(stream) => {
                let lane = self.lane(stream)?;
                if lane.queue.is_empty() && !lane.stalled {
                    self.run(frame)
                } else {
                    lane.queue.push_back(frame);
                    Ok(())
                }
            }
        }
    }

    /// Carries out what a spare was told of, while nothing else is asked of it.
    fn rehearse(&mut self) -> Result<()> {
        while !self.ops.has_record(&self.page.ops().0)
            && let Ok(frame) = self.rehearsals.try_recv()
        {
            // Handles first, then plans, then the operation itself.
            for _ in 0..4 {
                let ready = match self.backend.rehearse(&frame) {
                    Ok(Step::Later(task)) => self.backend.side_task(task)(),
                    Ok(Step::Done) => break,
                    Err(error) => Err(error),
                };
                match ready {
                    Ok(()) => {}
                    Err(error) if error.is_sticky() => return Err(error),
                    Err(_) => break,
                }
            }
        }
        Ok(())
    }

    fn lane(&mut self, stream: u8) -> Result<&mut Lane> {
        let reason = || GpuError::Protocol { side: "front".into(), reason: format!("there is no stream {stream}") };
        self.lanes.get_mut(stream as usize).ok_or_else(reason)
    }

    /// Runs a frame at the front of its stream; it goes (back) to the queue if it has to wait.
    fn run(&mut self, frame: Frame) -> Result<()> {
        let stream = frame.stream.unwrap_or(0);
        for i in 0..frame.waits.len() {
            let (after, seq) = frame.waits[i];
            if after == stream || self.page.counter(usize::from(after)).load(Ordering::Acquire) >= seq {
                continue;
            }
            if self.lane(after)?.enqueued < seq {
                self.lane(stream)?.queue.push_front(frame);
                return Ok(());
            }
            self.backend.order(stream, after)?;
        }
        let mut reply = Vec::new();
        let step = match self.refuse_poisoned(&frame) {
            Ok(()) => self.backend.enqueue(&frame, &mut reply),
            Err(error) => Err(error),
        };
        match step {
            Ok(Step::Done) => {
                if let Some(at) = frame.reply_at
                    && !reply.is_empty()
                {
                    self.page.write_reply(at, &reply);
                }
                self.advance(stream, frame.seq)
            }
            Ok(Step::Later(task)) => {
                let lane = self.lane(stream)?;
                lane.stalled = true;
                self.start(frame, task)
            }
            Err(error) => self.fail(frame, error),
        }
    }

    /// Runs an operation that belongs to no stream.
    fn side(&mut self, frame: Frame) -> Result<()> {
        let mut reply = Vec::new();
        match self.backend.enqueue(&frame, &mut reply) {
            Ok(Step::Done) => self.post(&Mail::Done { ticket: frame.ticket, reply }),
            Ok(Step::Later(task)) => self.start(frame, task),
            Err(error) => self.fail(frame, error),
        }
    }

    /// Fails one operation; its outputs are poisoned for those behind it. Sticky errors end all.
    fn fail(&mut self, frame: Frame, error: GpuError) -> Result<()> {
        if error.is_sticky() {
            return Err(error);
        }
        for buffer in frame.buffers.iter().filter(|buffer| buffer.access.writes()) {
            self.poisoned.insert(buffer.id, registry::operation_name(frame.library, frame.code));
        }
        self.post(&Mail::Failed { ticket: frame.ticket, error })?;
        frame.stream.map_or(Ok(()), |stream| self.advance(stream, frame.seq))
    }

    fn refuse_poisoned(&mut self, frame: &Frame) -> Result<()> {
        if self.poisoned.is_empty() {
            return Ok(());
        }
        for buffer in &frame.buffers {
            if buffer.access.reads()
                && let Some(by) = self.poisoned.get(&buffer.id)
            {
                return Err(GpuError::GpuRefStale {
                    operation: registry::operation_name(frame.library, frame.code),
                    argument: format!("buffer {}", buffer.id),
                    reason: StaleReason::Tainted { by: by.clone() },
                });
            }
        }
        for buffer in frame.buffers.iter().filter(|buffer| buffer.whole) {
            self.poisoned.remove(&buffer.id);
        }
        Ok(())
    }

    /// Starts a side task; its frame comes back through the channel.
    fn start(&mut self, frame: Frame, task: SideTask) -> Result<()> {
        let (finish, task) = (self.finish.clone(), self.backend.side_task(task));
        self.side_tasks += 1;
        std::thread::Builder::new()
            .name("atomr-side".into())
            .spawn(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task)).unwrap_or_else(|_| {
                    Err(GpuError::Protocol { side: "executor".into(), reason: "a side task panicked".into() })
                });
                // The loop may have ended meanwhile.
                let _ = finish.send((frame, result));
            })
            .map(drop)
            .map_err(|e| GpuError::io("starting a side thread", e))
    }

    /// Goes on with streams that waited and no longer have to.
    fn resume(&mut self) -> Result<()> {
        while self.side_tasks > 0
            && let Ok((frame, result)) = self.finished.try_recv()
        {
            self.side_tasks -= 1;
            if let Some(stream) = frame.stream {
                self.lane(stream)?.stalled = false;
            }
            match result {
                Ok(()) if frame.stream.is_some() => self.run(frame)?,
                Ok(()) => self.side(frame)?,
                Err(error) => self.fail(frame, error)?,
            }
        }
        for stream in 0..self.lanes.len() {
            while !self.lanes[stream].stalled
                && let Some(frame) = self.lanes[stream].queue.pop_front()
            {
                let seq = frame.seq;
                self.run(frame)?;
                if self.lanes[stream].enqueued < seq {
                    break;
                }
            }
        }
        self.publish()
    }

    /// Everything of `stream` up to `seq` is enqueued, or failed.
    fn advance(&mut self, stream: u8, seq: u64) -> Result<()> {
        self.lane(stream)?.enqueued = seq;
        self.behind |= 1 << stream;
        Ok(())
    }

    /// Has the counters follow what was enqueued.
    fn publish(&mut self) -> Result<()> {
        self.batched = 0;
        while self.behind != 0 {
            let stream = self.behind.trailing_zeros() as usize;
            self.behind &= self.behind - 1;
            let lane = &mut self.lanes[stream];
            self.backend.publish(stream as u8, lane.enqueued)?;
            lane.published = lane.enqueued;
        }
        Ok(())
    }

    fn post(&mut self, mail: &Mail) -> Result<()> {
        let record = encode_mail(mail)?;
        loop {
            let (at, words) = self.page.mail();
            match self.mail.push(&at, words, &record) {
                Ok(_) => return Ok(()),
                // The front collects mail whenever it looks for completions.
                Err(PushError::Full) if !self.stop.load(Ordering::Acquire) => {
                    std::thread::sleep(Duration::from_micros(50))
                }
                Err(PushError::Full) => return Ok(()),
                Err(PushError::TooLarge) => {
                    let ticket = match mail {
                        Mail::Done { ticket, .. } | Mail::Failed { ticket, .. } => *ticket,
                    };
                    let bytes = record.len() * 8;
                    let reason = format!("its reply of {bytes} bytes does not fit; ask for less");
                    let error = GpuError::invalid("reply", "size", reason);
                    return self.post(&Mail::Failed { ticket, error });
                }
                Err(PushError::Corrupt(corrupt)) => {
                    let reason = format!("the mail ring's position cannot be: {corrupt:?}");
                    return Err(GpuError::Protocol { side: "front".into(), reason });
                }
            }
        }
    }

    fn in_flight(&self) -> bool {
        let counter = |stream: usize| self.page.counter(stream).load(Ordering::Acquire);
        self.lanes.iter().enumerate().any(|(stream, lane)| counter(stream) < lane.published)
    }

    /// Sleeps until the front wakes this thread; briefly while work is in flight, to sweep.
    fn sleep(&mut self) {
        let waiting = self.side_tasks > 0 || self.in_flight();
        let limit = if waiting { SWEEP } else { Duration::from_millis(100) };
        let (at, _) = self.page.ops();
        if self.ops.prepare_sleep(&at) && !self.stop.load(Ordering::Acquire) {
            let timeout = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
            // Woken, timed out or interrupted: the loop looks either way.
            let _ = futex::wait(futex_word(at.sleeping), futex::Flags::empty(), 1, Some(&timeout));
        }
        at.sleeping.store(0, Ordering::Relaxed);
    }

    /// Waits for what is in flight, sweeping for errors.
    fn drain(&mut self) -> Result<()> {
        while self.in_flight() {
            self.backend.sweep()?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}
