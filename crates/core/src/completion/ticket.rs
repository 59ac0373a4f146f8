//! A ticket: the place where one operation's outcome appears.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Result;
use crate::worker::Page;

use super::Latency;

/// The reply's bytes, or why there are none.
pub(crate) type Outcome = Result<Vec<u8>>;

/// What a waiter needs of the device.
pub(crate) trait Progress: Send + Sync {
    /// The running worker's page, whose counters may be looked at.
    fn page(&self) -> Option<Arc<Page>>;
    /// Collects whatever has finished.
    fn harvest(&self);
    /// Makes sure that the reactor looks at the counters soon.
    fn watch(&self);
    /// Takes an operation back if it was not sent yet.
    fn cancel(&self, client: u32, ticket: &Arc<Ticket>);
    /// How long to spin.
    fn latency(&self) -> Latency;
}

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const DONE: u8 = 2;

#[derive(Debug)]
pub(crate) struct Ticket {
    pub id: u64,
    pub name: &'static str,
    state: AtomicU8,
    stream: AtomicU8,
    seq: AtomicU64,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Ticket {
    pub fn new(id: u64, name: &'static str) -> Arc<Self> {
        Arc::new(Ticket {
            id,
            name,
            state: AtomicU8::new(QUEUED),
            stream: AtomicU8::new(0),
            seq: AtomicU64::new(u64::MAX),
            slot: Mutex::default(),
        })
    }

    /// It was sent: it has finished when `stream`'s counter reaches `seq`.
    pub fn sent(&self, stream: u8, seq: u64) {
        self.stream.store(stream, Ordering::Relaxed);
        self.seq.store(seq, Ordering::Relaxed);
        self.state.store(SENT, Ordering::Release);
    }

    /// It is back in the queue: the worker it was sent to never took it.
    pub fn unsent(&self) {
        self.state.store(QUEUED, Ordering::Release);
    }

    /// Sets the outcome, once; the waker is to be woken when no lock is held.
    pub fn complete(&self, outcome: Outcome) -> Option<Waker> {
        let mut slot = self.slot.lock();
        if self.is_done() {
            return None;
        }
        slot.outcome = Some(outcome);
        self.state.store(DONE, Ordering::Release);
        slot.waker.take()
    }

    pub fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    pub fn take(&self) -> Option<Outcome> {
        if !self.is_done() {
            return None;
        }
        self.slot.lock().outcome.take()
    }

    /// Leaves a waker; `false` when the outcome is already there.
    pub fn register(&self, waker: &Waker) -> bool {
        let mut slot = self.slot.lock();
        if self.is_done() {
            return false;
        }
        match &mut slot.waker {
            Some(old) if old.will_wake(waker) => {}
            other => *other = Some(waker.clone()),
        }
        true
    }

    /// Spins on the stream's counter for at most `budget`; collects what has finished when it is
    /// reached. Whether the outcome is there.
    pub fn spin(&self, device: &dyn Progress, budget: Duration) -> bool {
        if self.is_done() {
            return true;
        }
        if budget.is_zero() {
            device.harvest();
            return self.is_done();
        }
        let mut started: Option<Instant> = None;
        let mut rounds = 0u32;
        // Of an earlier worker at worst: then its counters only cause a needless look.
        let mut page = device.page();
        loop {
            for _ in 0..64 {
                let reached = self.state.load(Ordering::Acquire) == SENT
                    && page.as_ref().is_some_and(|page| {
                        page.counter(self.stream.load(Ordering::Relaxed) as usize).load(Ordering::Acquire)
                            >= self.seq.load(Ordering::Relaxed)
                    });
                if reached {
                    device.harvest();
                }
                if self.is_done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            rounds += 1;
            if rounds.is_multiple_of(16) {
                device.harvest();
                page = device.page();
            }
            if started.get_or_insert_with(Instant::now).elapsed() >= budget {
                return false;
            }
        }
    }
}
