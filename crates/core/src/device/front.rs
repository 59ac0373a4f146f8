//! The front of a device: what is queued, what is in flight, and which worker has it.
//!
//! One lock guards the queues. Submitting, collecting what has finished and losing a worker all
//! happen under it; wakers are called outside it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::completion::{CompletionStrategy, Latency, Outcome, Pending, Progress, Ticket};
use crate::error::{GpuError, Result, StaleReason};
use crate::executor::backend::{BufferDesc, WorkerInfo};
use crate::memory::{Memory, Space, View};
use crate::operation::{Access, BufferShape, Lane, LibraryId, MAX_REPLY_BYTES, Operation};
use crate::worker::{
    Consumer, FrameHeader, Link, MAX_RECORD_WORDS, Mail, Page, Producer, PushError, REPLY_SLOTS, decode_mail,
    encode_frame,
};

use super::call::Call;
use super::config::{DeviceConfig, Isolation};
use super::reactor::Reactor;

type Wakers = SmallVec<[Waker; 8]>;

/// The states of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePhase {
    /// The first worker is being started.
    Starting,
    /// Operations are carried out.
    Ready,
    /// The worker was lost; another is taking over. Operations wait.
    Lost,
    /// The device gave up.
    Failed,
    /// The device was shut down.
    ShutDown,
}

/// One operation on its way.
struct Job {
    ticket: Arc<Ticket>,
    library: LibraryId,
    code: u16,
    lane: Lane,
    reply_bytes: u32,
    deadline: Option<(Instant, Duration)>,
    buffers: SmallVec<[(View, Access); 4]>,
    params: SmallVec<[u8; 96]>,
}

struct InFlight {
    job: Job,
    seq: u64,
    /// The ring's position behind its record: the worker has taken it when it passed here.
    position: u64,
    reply_slot: Option<u32>,
}

struct Attached {
    link: Arc<Link>,
    ops: Producer,
    mail: Consumer,
    next_seq: u64,
    finished_seq: u64,
    in_flight: VecDeque<InFlight>,
    side: HashMap<u64, InFlight>,
    outcomes: HashMap<u64, Outcome>,
    free_replies: Vec<u32>,
}

struct Queues {
    phase: DevicePhase,
    failure: Option<GpuError>,
    attached: Option<Attached>,
    pending: VecDeque<Job>,
    cancelled: usize,
    next_ticket: u64,
    earliest_deadline: Option<Instant>,
    record: Vec<u64>,
    mail: Vec<u64>,
}

/// Figures of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueFigures {
    pub pending: usize,
    pub in_flight: usize,
}

/// What a deadline asks for.
pub(crate) enum Overdue {
    Nothing,
    /// An operation with the worker is past its deadline: the worker has to go.
    Worker,
}

/// The part of a device that its handle, its actors and its reactor share.
pub(crate) struct Front {
    pub config: DeviceConfig,
    pub memory: Arc<Memory>,
    pub reactor: Reactor,
    pub generation: watch::Sender<u64>,
    pub phase: watch::Sender<DevicePhase>,
    info: Mutex<Option<WorkerInfo>>,
    queues: Mutex<Queues>,
    pub completed: AtomicU64,
    pub losses: AtomicU64,
}

impl Front {
    pub fn new(config: DeviceConfig, reactor: Reactor) -> Arc<Self> {
        let memory = Memory::new(config.label(), config.memory_limit);
        Arc::new(Front {
            memory,
            reactor,
            generation: watch::Sender::new(0),
            phase: watch::Sender::new(DevicePhase::Starting),
            info: Mutex::new(None),
            queues: Mutex::new(Queues {
                phase: DevicePhase::Starting,
                failure: None,
                attached: None,
                pending: VecDeque::new(),
                cancelled: 0,
                next_ticket: 1,
                earliest_deadline: None,
                record: Vec::new(),
                mail: Vec::new(),
            }),
            completed: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            config,
        })
    }

    /// The running worker.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.queues.lock().attached.as_ref().map(|attached| attached.link.clone())
    }

    /// What the last worker said of itself.
    pub fn info(&self) -> Option<WorkerInfo> {
        self.info.lock().clone()
    }

    pub fn figures(&self) -> QueueFigures {
        let queues = self.queues.lock();
        let in_flight = queues.attached.as_ref().map_or(0, Attached::len);
        QueueFigures { pending: queues.pending.len() - queues.cancelled, in_flight }
    }

    /// Why the device failed.
    pub fn failure(&self) -> GpuError {
        let queues = self.queues.lock();
        match &queues.failure {
            Some(error) => error.clone(),
            None => self.failed(&queues),
        }
    }

    /// Checks a call and queues it, or refuses it.
    pub fn submit<O: Operation>(self: &Arc<Self>, call: Call<O>) -> Result<Pending<O>> {
        if self.config.executor.is_none() {
            return Err(GpuError::Mock { operation: O::NAME.into() });
        }
        let buffers = self.check(&call.operation, &call.buffers)?;
        let params: SmallVec<[u8; 96]> = postcard::to_extend(&call.operation, Extend(SmallVec::new()))
            .map_err(|e| GpuError::invalid(O::NAME, "parameters", format!("they do not serialise: {e}")))?
            .0;
        let reply_bytes = call.operation.reply_bytes();
        if reply_bytes > MAX_REPLY_BYTES || params.len() / 8 + 64 > MAX_RECORD_WORDS {
            let reason = format!("{} bytes of parameters, {reply_bytes} of reply", params.len());
            return Err(GpuError::invalid(O::NAME, "size", reason));
        }
        let deadline = call.options.deadline.or(self.config.deadline);
        let job = Job {
            ticket: Ticket::new(0, O::NAME),
            library: O::LIBRARY,
            code: O::CODE,
            lane: O::LANE,
            reply_bytes: reply_bytes as u32,
            deadline: deadline.map(|deadline| (Instant::now() + deadline, deadline)),
            buffers,
            params,
        };
        let ticket = self.enqueue(job)?;
        let pending = Pending::new(ticket.clone(), self.clone(), call.operation);
        if self.config.completion == CompletionStrategy::Synchronous {
            while !ticket.spin(&**self, Duration::from_millis(50)) {}
        }
        Ok(pending)
    }

    /// Everything that can be known of the arguments without the queues.
    fn check<O: Operation>(&self, operation: &O, buffers: &[View]) -> Result<SmallVec<[(View, Access); 4]>> {
        let arguments = operation.arguments();
        if arguments.len() != buffers.len() {
            let reason = format!("{} are needed, {} were given", arguments.len(), buffers.len());
            return Err(GpuError::invalid(O::NAME, "buffers", reason));
        }
        let mut shapes: SmallVec<[BufferShape; 4]> = SmallVec::new();
        for (argument, view) in arguments.iter().zip(buffers) {
            let memory = view.buffer.memory();
            if memory.token != self.memory.token {
                return Err(GpuError::WrongDevice {
                    operation: O::NAME.into(),
                    argument: argument.name.into(),
                    expected: self.memory.label.clone(),
                    found: memory.label.clone(),
                });
            }
            if view.frozen && argument.access.writes() {
                return Err(GpuError::invalid(O::NAME, argument.name, "a `Blob` is read only"));
            }
            shapes.push(BufferShape { name: argument.name, dtype: view.dtype(), len: view.len() });
        }
        operation.check(&shapes)?;
        for (i, output) in arguments.iter().enumerate().filter(|(_, argument)| argument.access.writes()) {
            for (j, other) in arguments.iter().enumerate() {
                if i != j && buffers[i].overlaps(&buffers[j]) {
                    return Err(GpuError::Aliased {
                        operation: O::NAME.into(),
                        output: output.name.into(),
                        other: other.name.into(),
                    });
                }
            }
        }
        for (argument, view) in arguments.iter().zip(buffers) {
            self.check_fresh(O::NAME, argument.name, argument.access, view)?;
        }
        Ok(buffers.iter().cloned().zip(arguments.iter().map(|argument| argument.access)).collect())
    }

    /// Refuses buffers whose contents are gone or undefined.
    fn check_fresh(&self, operation: &str, argument: &str, access: Access, view: &View) -> Result<()> {
        let stale =
            |reason| Err(GpuError::GpuRefStale { operation: operation.into(), argument: argument.into(), reason });
        if view.buffer.space == Space::Device && view.buffer.generation < self.memory.valid_from() {
            let (buffer, device) = (view.buffer.generation, self.memory.generation());
            return stale(StaleReason::Generation { buffer, device });
        }
        let overwritten = access == Access::Write && view.is_whole();
        match view.buffer.with_state(|state| state.tainted_by) {
            Some(by) if !overwritten => stale(StaleReason::Tainted { by: by.into() }),
            _ => Ok(()),
        }
    }

    fn enqueue(&self, mut job: Job) -> Result<Arc<Ticket>> {
        let mut queues = self.queues.lock();
        match queues.phase {
            DevicePhase::Failed => return Err(self.failed(&queues)),
            DevicePhase::ShutDown => {
                return Err(GpuError::ShutDown { device: self.memory.label.clone() });
            }
            DevicePhase::Starting | DevicePhase::Ready | DevicePhase::Lost => {}
        }
        let ticket = Ticket::new(queues.next_ticket, job.ticket.name);
        job.ticket = ticket.clone();
        let waiting = queues.pending.len() - queues.cancelled;
        if waiting > 0 || queues.phase != DevicePhase::Ready {
            if waiting >= self.config.pending_queue_capacity {
                return Err(GpuError::Busy { pending: waiting, capacity: self.config.pending_queue_capacity });
            }
            queues.accept(&job);
            queues.pending.push_back(job);
            if queues.phase == DevicePhase::Ready {
                self.pump(&mut queues)?;
            }
            return Ok(ticket);
        }
        queues.accept(&job);
        if let Err((job, error)) = self.send(&mut queues, job) {
            match error {
                None if self.config.pending_queue_capacity == 0 => {
                    return Err(GpuError::Busy { pending: 0, capacity: 0 });
                }
                None => queues.pending.push_back(job),
                Some(error) => {
                    self.reactor.distrust(error);
                    queues.pending.push_back(job);
                }
            }
        }
        Ok(ticket)
    }

    /// Sends one job to the worker. `Err(None)`: no room now; `Err(Some)`: the ring cannot be.
    #[allow(clippy::result_large_err)]
    fn send(&self, queues: &mut Queues, job: Job) -> Result<(), (Job, Option<GpuError>)> {
        let Some(attached) = queues.attached.as_mut() else {
            return Err((job, None));
        };
        if attached.len() >= self.config.max_in_flight {
            return Err((job, None));
        }
        let reply_slot = match job.lane == Lane::Stream && job.reply_bytes > 0 {
            true => match attached.free_replies.pop() {
                Some(slot) => Some(slot),
                None => return Err((job, None)),
            },
            false => None,
        };
        let stream = (job.lane == Lane::Stream).then_some(0);
        let seq = attached.next_seq;
        let header = FrameHeader {
            ticket: job.ticket.id,
            stream,
            seq,
            library: job.library,
            code: job.code,
            reply_at: reply_slot.map(Page::reply_at),
        };
        let descs = job.buffers.iter().map(|(view, access)| {
            let (segment, offset) = view.buffer.location();
            BufferDesc {
                id: view.buffer.id,
                segment,
                offset: offset + view.offset,
                bytes: view.bytes,
                access: *access,
                dtype: view.dtype(),
                whole: *access == Access::Write && view.is_whole(),
            }
        });
        encode_frame(&mut queues.record, &header, &[], descs, &job.params);
        let page = attached.link.page.clone();
        let (at, words) = page.ops();
        let position = match attached.ops.push(&at, words, &queues.record) {
            Ok(position) => position,
            Err(refused) => {
                attached.free_replies.extend(reply_slot);
                let error = match refused {
                    PushError::Full => None,
                    PushError::TooLarge => {
                        Some(GpuError::invalid(job.ticket.name, "parameters", "larger than the ring"))
                    }
                    PushError::Corrupt(corrupt) => Some(GpuError::Protocol {
                        side: "worker".into(),
                        reason: format!("its position in the operation ring cannot be: {corrupt:?}"),
                    }),
                };
                return Err((job, error));
            }
        };
        let flight = InFlight { seq, position, reply_slot, job };
        if stream.is_some() {
            attached.next_seq += 1;
            flight.job.ticket.sent(&page, 0, seq);
            attached.in_flight.push_back(flight);
        } else {
            attached.side.insert(flight.job.ticket.id, flight);
        }
        if attached.ops.must_wake(&at) {
            attached.link.wake();
        }
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    fn pump(&self, queues: &mut Queues) -> Result<()> {
        while let Some(job) = queues.pending.pop_front() {
            if job.ticket.cancelled.load(Ordering::Relaxed) {
                queues.cancelled -= 1;
                continue;
            }
            if let Err((job, error)) = self.send(queues, job) {
                queues.pending.push_front(job);
                return error.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// Collects everything that has finished and sends what waits.
    fn collect(&self, queues: &mut Queues, wakers: &mut Wakers) -> Result<()> {
        let Queues { attached, mail, .. } = queues;
        let Some(attached) = attached.as_mut() else {
            return Ok(());
        };
        let counter = attached.link.page.counter(0).load(Ordering::Acquire);
        if counter >= attached.next_seq || counter < attached.finished_seq {
            let (from, to) = (attached.finished_seq, attached.next_seq);
            let reason = format!("a stream's counter is {counter}, expected {from} to {}", to - 1);
            return Err(GpuError::Protocol { side: "worker".into(), reason });
        }
        loop {
            let page = attached.link.page.clone();
            let (at, words) = page.mail();
            match attached.mail.pop(&at, words, mail) {
                Ok(false) => break,
                Ok(true) => attached.take_mail(decode_mail(mail)?, wakers),
                Err(corrupt) => {
                    let reason = format!("its position in the mail ring cannot be: {corrupt:?}");
                    return Err(GpuError::Protocol { side: "worker".into(), reason });
                }
            }
        }
        if counter == attached.finished_seq {
            return Ok(());
        }
        attached.finished_seq = counter;
        let mut done = 0;
        while let Some(flight) = attached.in_flight.front()
            && flight.seq <= counter
        {
            let flight = attached.in_flight.pop_front().expect("just seen");
            attached.finish(flight, wakers);
            done += 1;
        }
        self.completed.fetch_add(done, Ordering::Relaxed);
        if queues.pending.is_empty() { Ok(()) } else { self.pump(queues) }
    }

    /// A new worker takes over: the queue goes on.
    pub fn attach(&self, link: Arc<Link>, generation: u64) {
        let survives = self.config.isolation == Isolation::Process;
        *self.info.lock() = Some(link.info.clone());
        let mut queues = self.queues.lock();
        if queues.phase == DevicePhase::ShutDown {
            return;
        }
        self.memory.begin_generation(generation, survives || generation == 1);
        queues.attached = Some(Attached::new(link));
        queues.phase = DevicePhase::Ready;
        let mut wakers = Wakers::new();
        self.refuse_stale(&mut queues, &mut wakers);
        let pumped = self.pump(&mut queues);
        drop(queues);
        self.phase.send_replace(DevicePhase::Ready);
        self.generation.send_replace(generation);
        wake_all(wakers);
        if let Err(error) = pumped {
            self.reactor.distrust(error);
        }
    }

    /// Waiting operations whose inputs were lost with the worker fail now; their outputs are stale in
    /// turn.
    fn refuse_stale(&self, queues: &mut Queues, wakers: &mut Wakers) {
        let jobs = std::mem::take(&mut queues.pending);
        for job in jobs {
            let stale = job
                .buffers
                .iter()
                .find_map(|(view, access)| self.check_fresh(job.ticket.name, "buffer", *access, view).err());
            match stale {
                None => {
                    job.clear_taint();
                    queues.pending.push_back(job);
                }
                Some(error) => {
                    if job.ticket.cancelled.load(Ordering::Relaxed) {
                        queues.cancelled -= 1;
                    }
                    job.taint_outputs(None);
                    wakers.extend(job.ticket.complete(Err(error)));
                }
            }
        }
    }

    /// The worker is lost: what it had taken fails, what it had not is queued again.
    pub fn lose(&self, lost: &Link, error: &GpuError, overdue: bool) {
        let mut queues = self.queues.lock();
        let mut wakers = Wakers::new();
        if queues.attached.as_ref().is_none_or(|attached| attached.link.id != lost.id) {
            return;
        }
        // Whatever finished before the end did finish.
        let _ = self.collect(&mut queues, &mut wakers);
        let Some(mut attached) = queues.attached.take() else {
            return;
        };
        let taken = attached.link.page.ops_taken();
        let side = attached.side.drain().map(|(_, flight)| flight);
        let mut flights: Vec<InFlight> = attached.in_flight.drain(..).chain(side).collect();
        flights.sort_by_key(|flight| flight.position);
        let (running, unsent): (Vec<_>, Vec<_>) = flights.into_iter().partition(|flight| flight.position <= taken);
        let candidates: Vec<String> = running.iter().take(16).map(|flight| flight.job.ticket.name.into()).collect();
        let now = Instant::now();
        for flight in running {
            let job = flight.job;
            job.taint_outputs(Some(lost.id));
            let outcome = match job.deadline {
                Some((at, deadline)) if overdue && at <= now => {
                    GpuError::DeadlineExceeded { operation: job.ticket.name.into(), deadline }
                }
                _ => GpuError::ContextPoisoned {
                    operation: job.ticket.name.into(),
                    error: Box::new(error.clone()),
                    candidates: candidates.clone(),
                },
            };
            wakers.extend(job.ticket.complete(Err(outcome)));
        }
        for flight in unsent.into_iter().rev() {
            flight.job.ticket.unsent();
            queues.pending.push_front(flight.job);
        }
        if queues.phase == DevicePhase::Ready {
            queues.phase = DevicePhase::Lost;
        }
        self.losses.fetch_add(1, Ordering::Relaxed);
        drop(queues);
        lost.abandon_requests();
        self.phase.send_if_modified(|phase| {
            let change = *phase == DevicePhase::Ready;
            if change {
                *phase = DevicePhase::Lost;
            }
            change
        });
        wake_all(wakers);
    }

    /// The device ends, for good: every reply is given.
    pub fn end(&self, phase: DevicePhase, failure: Option<GpuError>) {
        let mut queues = self.queues.lock();
        if queues.phase == DevicePhase::ShutDown || queues.phase == phase {
            return;
        }
        queues.phase = phase;
        queues.failure = failure;
        queues.cancelled = 0;
        let jobs = std::mem::take(&mut queues.pending);
        let error = match phase {
            DevicePhase::Failed => self.failed(&queues),
            _ => GpuError::ShutDown { device: self.memory.label.clone() },
        };
        let mut wakers = Wakers::new();
        for job in jobs {
            wakers.extend(job.ticket.complete(Err(error.clone())));
        }
        if let Some(mut attached) = queues.attached.take() {
            let side = attached.side.drain().map(|(_, flight)| flight);
            for flight in attached.in_flight.drain(..).chain(side).collect::<Vec<_>>() {
                flight.job.taint_outputs(Some(attached.link.id));
                wakers.extend(flight.job.ticket.complete(Err(error.clone())));
            }
        }
        drop(queues);
        self.phase.send_replace(phase);
        wake_all(wakers);
    }

    fn failed(&self, queues: &Queues) -> GpuError {
        let reason = queues.failure.as_ref().map_or_else(|| "unknown".into(), GpuError::to_string);
        GpuError::DeviceFailed { device: self.memory.label.clone(), reason }
    }

    /// Fails operations past their deadlines.
    pub fn expire(&self, now: Instant) -> Overdue {
        let mut queues = self.queues.lock();
        if queues.earliest_deadline.is_none_or(|at| now < at) {
            return Overdue::Nothing;
        }
        let mut wakers = Wakers::new();
        let due = |job: &Job| job.deadline.is_some_and(|(at, _)| at <= now);
        let (late, waiting): (VecDeque<Job>, VecDeque<Job>) =
            std::mem::take(&mut queues.pending).into_iter().partition(due);
        queues.pending = waiting;
        for job in late {
            if job.ticket.cancelled.load(Ordering::Relaxed) {
                queues.cancelled -= 1;
            }
            job.taint_outputs(None);
            let deadline = job.deadline.map_or(Duration::ZERO, |(_, deadline)| deadline);
            let error = GpuError::DeadlineExceeded { operation: job.ticket.name.into(), deadline };
            wakers.extend(job.ticket.complete(Err(error)));
        }
        let queues = &mut *queues;
        let flights =
            || queues.attached.iter().flat_map(|attached| attached.in_flight.iter().chain(attached.side.values()));
        let overdue = flights().any(|flight| due(&flight.job));
        let jobs = queues.pending.iter().chain(flights().map(|flight| &flight.job));
        queues.earliest_deadline = jobs.filter_map(|job| job.deadline.map(|(at, _)| at)).min();
        wake_all(wakers);
        if overdue { Overdue::Worker } else { Overdue::Nothing }
    }

    /// Whether the reactor has anything to look for, and whether soon.
    pub fn busy(&self) -> bool {
        self.queues.lock().attached.as_ref().is_some_and(|attached| attached.len() > 0)
    }
}

impl Progress for Front {
    fn harvest(&self) {
        let mut wakers = Wakers::new();
        let collected = self.collect(&mut self.queues.lock(), &mut wakers);
        wake_all(wakers);
        if let Err(error) = collected {
            self.reactor.distrust(error);
        }
    }

    fn watch(&self) {
        self.reactor.watch();
    }

    fn cancel(&self, ticket: &Arc<Ticket>) {
        let mut queues = self.queues.lock();
        let Some(job) = queues.pending.iter_mut().find(|job| Arc::ptr_eq(&job.ticket, ticket)) else {
            return;
        };
        if ticket.cancelled.swap(true, Ordering::Relaxed) {
            return;
        }
        // Its buffers are free from here on; the empty entry is skipped when its turn comes.
        let buffers = std::mem::take(&mut job.buffers);
        queues.cancelled += 1;
        for (view, access) in &buffers {
            if *access == Access::Write && view.is_whole() {
                view.buffer.taint(ticket.name, None);
            }
        }
        drop(queues);
        drop(buffers);
        ticket.complete(Err(GpuError::Cancelled { operation: ticket.name.into() }));
    }

    fn latency(&self) -> Latency {
        self.config.latency
    }
}

impl Queues {
    /// Marks an operation as accepted: it will overwrite what it overwrites.
    fn accept(&mut self, job: &Job) {
        self.next_ticket += 1;
        if let Some((at, _)) = job.deadline {
            self.earliest_deadline = Some(self.earliest_deadline.map_or(at, |earliest| earliest.min(at)));
        }
        job.clear_taint();
    }
}

impl Job {
    /// What it overwrites whole is sound again, whatever was written there before.
    fn clear_taint(&self) {
        for (view, access) in &self.buffers {
            if *access == Access::Write && view.is_whole() {
                view.buffer.with_state(|state| state.tainted_by = None);
            }
        }
    }

    fn taint_outputs(&self, writer: Option<u64>) {
        for (view, access) in &self.buffers {
            if access.writes() {
                view.buffer.taint(self.ticket.name, writer);
            }
        }
    }
}

impl Attached {
    fn new(link: Arc<Link>) -> Self {
        Attached {
            link,
            ops: Producer::default(),
            mail: Consumer::default(),
            next_seq: 1,
            finished_seq: 0,
            in_flight: VecDeque::new(),
            side: HashMap::new(),
            outcomes: HashMap::new(),
            free_replies: (0..REPLY_SLOTS as u32).collect(),
        }
    }

    fn len(&self) -> usize {
        self.in_flight.len() + self.side.len()
    }

    fn take_mail(&mut self, mail: Mail, wakers: &mut Wakers) {
        let (ticket, outcome) = match mail {
            Mail::Failed { ticket, error } => (ticket, Err(error)),
            Mail::Done { ticket, reply } => (ticket, Ok(reply)),
        };
        match self.side.remove(&ticket) {
            Some(flight) => {
                if outcome.is_err() {
                    flight.job.taint_outputs(None);
                }
                wakers.extend(flight.job.ticket.complete(outcome));
            }
            None => drop(self.outcomes.insert(ticket, outcome)),
        }
    }

    fn finish(&mut self, flight: InFlight, wakers: &mut Wakers) {
        let outcome = if self.outcomes.is_empty() { None } else { self.outcomes.remove(&flight.job.ticket.id) };
        let outcome = outcome.unwrap_or_else(|| match flight.reply_slot {
            Some(slot) => Ok(self.link.page.read_reply(slot, flight.job.reply_bytes as usize)),
            None => Ok(Vec::new()),
        });
        self.free_replies.extend(flight.reply_slot);
        match &outcome {
            Ok(_) => flight.job.clear_taint(),
            Err(_) => flight.job.taint_outputs(None),
        }
        wakers.extend(flight.job.ticket.complete(outcome));
    }
}

fn wake_all(wakers: Wakers) {
    for waker in wakers {
        waker.wake();
    }
}

/// A small vector that serialisation may extend.
struct Extend(SmallVec<[u8; 96]>);

impl std::iter::Extend<u8> for Extend {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}
