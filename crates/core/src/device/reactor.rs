//! The reactor: one thread a device that notices completions, deadlines and the ends of workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atomr_core::actor::ActorRef;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Timespec;

use crate::completion::Progress;
use crate::error::{GpuError, Result};
use crate::worker::{FromWorker, Link, Received, ToWorker, exit_error};

use super::front::Front;
use super::incarnation::Overdue;
use super::messages::{DeviceMsg, Event};

/// How often deadlines and errors are looked for while something is in flight, and while nothing is.
const SWEEP: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(5);
/// The shortest sleep.
const SHORTEST: Duration = Duration::from_micros(20);
/// How long a worker that reported a sticky error is left alone.
const LAST_REST: Duration = Duration::from_millis(400);

/// The reactor's shared half.
#[derive(Clone)]
pub(crate) struct Reactor {
    shared: Arc<Shared>,
}

struct Shared {
    wake: OwnedFd,
    asleep: AtomicBool,
    watched: AtomicBool,
    stop: AtomicBool,
    links: Mutex<Vec<Arc<Link>>>,
    distrusted: Mutex<Option<GpuError>>,
}

impl Reactor {
    pub fn new() -> Result<Self> {
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| GpuError::io("eventfd", e))?;
        Ok(Reactor {
            shared: Arc::new(Shared {
                wake,
                asleep: AtomicBool::new(false),
                watched: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                links: Mutex::default(),
                distrusted: Mutex::default(),
            }),
        })
    }

    /// Starts the thread.
    pub fn start(&self, front: Arc<Front>, actor: ActorRef<DeviceMsg>) -> Result<()> {
        let shared = self.shared.clone();
        std::thread::Builder::new()
            .name("atomr-reactor".into())
            .spawn(move || Run { shared, front, actor }.serve())
            .map(drop)
            .map_err(|e| GpuError::io("starting the reactor thread", e))
    }

    /// Somebody waits: look at the counters soon.
    pub fn watch(&self) {
        self.shared.watched.store(true, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The running worker wrote something that cannot be: it has to go.
    pub fn distrust(&self, error: GpuError) {
        self.shared.distrusted.lock().get_or_insert(error);
        self.wake();
    }

    /// Watches over a worker, running or spare.
    pub fn add(&self, link: Arc<Link>) {
        self.shared.links.lock().push(link);
        self.wake();
    }

    /// Every worker that is watched over.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.shared.links.lock().clone()
    }

    /// Ends the thread and forgets the workers.
    pub fn stop(&self) -> Vec<Arc<Link>> {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        std::mem::take(&mut *self.shared.links.lock())
    }

    fn wake(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }
}

struct Run {
    shared: Arc<Shared>,
    front: Arc<Front>,
    actor: ActorRef<DeviceMsg>,
}

impl Run {
    fn serve(&self) {
        // Since when somebody has been waiting without anything having finished.
        let mut waiting: Option<Instant> = None;
        let mut last = 0;
        while !self.shared.stop.load(Ordering::Acquire) {
            let watched = self.shared.watched.swap(false, Ordering::SeqCst);
            let busy = self.front.busy();
            if !busy {
                waiting = None;
            } else if watched {
                self.spin();
                waiting.get_or_insert_with(Instant::now);
            }
            let completed = self.front.completed.load(Ordering::Relaxed);
            if completed != std::mem::replace(&mut last, completed) {
                waiting = waiting.map(|_| Instant::now());
            }
            self.sleep(match (busy, waiting) {
                (false, _) => IDLE,
                (true, None) => SWEEP,
                // Whoever waits waits hardly longer than it has to, and a long wait costs few looks.
                (true, Some(since)) => (since.elapsed() / 50).clamp(SHORTEST, SWEEP),
            });
            self.receive();
            let distrusted = self.shared.distrusted.lock().take();
            if let Some(error) = distrusted
                && let Some(link) = self.front.link()
            {
                self.lost(&link, error, false);
            }
            if let Overdue::Worker = self.front.expire(Instant::now())
                && let Some(link) = self.front.link()
            {
                let error = exit_error(&link, Some("an operation passed its deadline, so the worker was killed"));
                self.lost(&link, error, true);
            }
            self.unmap_dropped();
            self.rehearse();
            self.front.harvest();
        }
    }

    /// Looks at the counters without sleeping, for as long as the latency setting allows.
    fn spin(&self) {
        let budget = self.front.config.latency.spin();
        let mut started = Instant::now();
        let mut last = self.front.completed.load(Ordering::Relaxed);
        while started.elapsed() < budget && !self.shared.stop.load(Ordering::Relaxed) {
            self.front.harvest();
            let completed = self.front.completed.load(Ordering::Relaxed);
            if completed != last {
                // Work flows: whoever was woken will most likely wait again.
                (last, started) = (completed, Instant::now());
            }
            // The thread that was woken may need this core.
            std::thread::yield_now();
        }
    }

    /// Sleeps for at most `limit`; until a worker says something, or somebody begins to wait.
    fn sleep(&self, limit: Duration) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        let watched = self.shared.watched.load(Ordering::SeqCst);
        let limit = if watched { limit.min(SHORTEST) } else { limit };
        let links = self.shared.links.lock().clone();
        let mut fds: Vec<PollFd<'_>> = links.iter().map(|link| PollFd::new(&link.channel, PollFlags::IN)).collect();
        fds.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        // Interrupted or failed: the loop looks at everything either way.
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 }));
        self.shared.asleep.store(false, Ordering::SeqCst);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
    }

    /// Takes what the workers sent.
    fn receive(&self) {
        let links = self.shared.links.lock().clone();
        for link in links {
            loop {
                match link.channel.receive::<FromWorker>(false) {
                    Ok(Received::Nothing) => break,
                    Ok(Received::Message(FromWorker::Dying(error), _)) => {
                        self.lost(&link, error, false);
                        break;
                    }
                    Ok(Received::Message(message, fd)) => link.deliver(message, fd),
                    Ok(Received::Closed) => {
                        let error = exit_error(&link, None);
                        self.lost(&link, error, false);
                        break;
                    }
                    Err(error) => {
                        self.lost(&link, error, false);
                        break;
                    }
                }
            }
        }
    }

    /// A worker has ended or has to.
    fn lost(&self, link: &Arc<Link>, error: GpuError, overdue: bool) {
        self.shared.links.lock().retain(|other| other.id != link.id);
        let dying = self.is_dying(link, &error, overdue);
        if !dying {
            link.kill();
        }
        let running = self.front.link().is_some_and(|running| running.id == link.id);
        self.front.rehearsal.lock().forget(link.id, !running);
        self.front.lose(link, &error, overdue);
        self.actor.tell(DeviceMsg::Internal(Event::Lost { link: link.id, error }));
        let (link, memory) = (link.clone(), self.front.memory.clone());
        let reaper = std::thread::Builder::new().name("atomr-reaper".into()).spawn(move || {
            if dying {
                std::thread::sleep(LAST_REST);
            }
            link.reap();
            memory.release_quarantine(link.id);
        });
        if let Err(error) = reaper {
            tracing::error!(%error, "no thread to reap a worker; its memory stays in quarantine");
        }
    }

    /// Tells the spares what to rehearse.
    fn rehearse(&self) {
        let running = self.front.link().map(|link| link.id);
        for link in self.shared.links.lock().iter().filter(|link| Some(link.id) != running) {
            while let Some(record) = self.front.rehearsal.lock().next_for(link.id) {
                // A spare that does not listen is found out by its channel.
                let _ = link.channel.send(&ToWorker::Rehearse { record }, None);
            }
        }
    }

    /// Whether a worker that lost its context may rest a while before it is killed: taking a process
    /// with a context down holds up every other process on the GPU for some 50 to 100 ms.
    fn is_dying(&self, link: &Link, error: &GpuError, overdue: bool) -> bool {
        !overdue && !link.in_process && error.is_sticky()
    }

    /// Has the workers unmap segments that were freed.
    fn unmap_dropped(&self) {
        if !self.front.memory.has_dropped() {
            return;
        }
        let ids = self.front.memory.take_dropped();
        for link in self.shared.links.lock().iter() {
            // A worker that does not listen is found out by its channel.
            let _ = link.channel.send(&ToWorker::DropSegments { ids: ids.clone() }, None);
        }
    }
}
