//! The floor: what two processes and two threads cost without any of this project's code.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Set in the environment of the process that answers: the descriptor of the shared memory.
const ECHO_ENV: &str = "ATOMR_CUDA_BENCH_ECHO";
const PAGE_BYTES: usize = 4096;

/// Two words on cache lines of their own, far enough apart for the prefetcher of pairs of lines.
#[repr(C, align(256))]
struct Shared {
    ping: Line,
    pong: Line,
}

#[repr(C, align(256))]
struct Line(AtomicU64);

/// The shared memory, mapped for as long as the process lives.
fn map(fd: impl AsFd) -> &'static Shared {
    // SAFETY: a new mapping at an address that the kernel chooses; it aliases no Rust object.
    let page = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED, fd, 0).expect("mmap")
    };
    // SAFETY: the page is aligned, large enough, never unmapped, and any bytes are two atomic words.
    unsafe { &*page.cast::<Shared>() }
}

fn spin_until(word: &AtomicU64, value: u64) {
    while word.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
    }
}

/// A process that answers through shared memory; it sleeps between the games.
pub struct PingPong {
    child: Child,
    shared: &'static Shared,
    next: u64,
    // The child has inherited it by number.
    _memory: OwnedFd,
}

impl PingPong {
    /// Starts this program again as the other player.
    pub fn new() -> Self {
        let memory = rustix::fs::memfd_create("ping-pong", MemfdFlags::empty()).expect("memfd_create");
        rustix::fs::ftruncate(&memory, PAGE_BYTES as u64).expect("a page");
        let child = Command::new(std::env::current_exe().expect("this executable"))
            .env(ECHO_ENV, memory.as_raw_fd().to_string())
            .stdin(Stdio::piped())
            .spawn()
            .expect("the other player");
        PingPong { child, shared: map(&memory), next: 0, _memory: memory }
    }

    /// `rounds` round trips, each timed, after a tenth more that are not.
    pub fn play(&mut self, rounds: u64, seconds: &mut Vec<f64>) {
        let total = rounds + rounds / 10;
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        stdin.write_all(&total.to_le_bytes()).expect("the other player is there");
        for round in 0..total {
            self.next += 1;
            let started = Instant::now();
            self.shared.ping.0.store(self.next, Ordering::Release);
            spin_until(&self.shared.pong.0, self.next);
            if round >= rounds / 10 {
                seconds.push(started.elapsed().as_secs_f64());
            }
        }
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        // Without its input the other player ends.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Answers and does not return, if this process was started for it.
pub fn echo_if_started_as_such() {
    let Some(fd) = std::env::var(ECHO_ENV).ok().and_then(|fd| fd.parse().ok()) else {
        return;
    };
    // A game that the parent does not finish must not be played on for ever.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("prctl");
    // SAFETY: the parent left this descriptor open for us and named it.
    let shared = map(unsafe { BorrowedFd::borrow_raw(fd) });
    let (mut rounds, mut at) = ([0; 8], 0);
    while std::io::stdin().read_exact(&mut rounds).is_ok() {
        for _ in 0..u64::from_le_bytes(rounds) {
            at += 1;
            spin_until(&shared.ping.0, at);
            shared.pong.0.store(at, Ordering::Release);
        }
    }
    std::process::exit(0);
}

/// A thread that wakes tasks. It ends with the last sender.
pub struct Waker {
    tasks: mpsc::Sender<oneshot::Sender<Instant>>,
}

impl Waker {
    /// Long enough for a task that waits to have put its thread to sleep.
    const PAUSE: Duration = Duration::from_micros(50);

    pub fn new() -> Self {
        let (tasks, waiting) = mpsc::channel::<oneshot::Sender<Instant>>();
        std::thread::spawn(move || {
            for task in waiting {
                let started = Instant::now();
                while started.elapsed() < Self::PAUSE {
                    std::hint::spin_loop();
                }
                // The time is taken right before the wake: the pause is no part of it.
                let _ = task.send(Instant::now());
            }
        });
        Waker { tasks }
    }

    /// From the wake to the task's next step, `count` times, each timed, after a tenth more.
    pub fn wake(&self, runtime: &Runtime, count: usize, seconds: &mut Vec<f64>) {
        let tasks = self.tasks.clone();
        let task = runtime.spawn(async move {
            let mut seconds = Vec::with_capacity(count);
            for sample in 0..count + count / 10 {
                let (sender, woken) = oneshot::channel();
                tasks.send(sender).expect("the thread is there");
                let sent = woken.await.expect("the thread answers");
                if sample >= count / 10 {
                    seconds.push(sent.elapsed().as_secs_f64());
                }
            }
            seconds
        });
        seconds.extend(runtime.block_on(task).expect("the task ends"));
    }
}
