//! One operation on its way, from its submission to its outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::completion::Ticket;
use crate::memory::{View, Waits};
use crate::operation::{Access, Lane, LibraryId};

use super::streams::Priority;

/// An operation that was accepted.
pub(crate) struct Job {
    pub ticket: Arc<Ticket>,
    pub library: LibraryId,
    pub code: u16,
    pub lane: Lane,
    pub priority: Priority,
    /// Whose it is: clients are served in turn.
    pub client: u32,
    /// Whether a spare may carry it out on scratch memory.
    pub rehearse: bool,
    pub reply_bytes: u32,
    pub deadline: Option<(Instant, Duration)>,
    pub buffers: SmallVec<[(View, Access); 4]>,
    pub params: SmallVec<[u8; 96]>,
}

impl Job {
    /// What it overwrites whole is sound again, whatever was written there before.
    pub fn clear_taint(&self) {
        for (view, access) in &self.buffers {
            if *access == Access::Write && view.is_whole() {
                view.buffer.clear_taint();
            }
        }
    }

    /// What it writes is undefined. With `writer`, the dying worker may still be writing it.
    pub fn taint_outputs(&self, writer: Option<u64>) {
        for (view, access) in &self.buffers {
            if access.writes() {
                view.buffer.taint(self.ticket.name, writer);
            }
        }
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|(at, _)| at <= now)
    }

    /// The points that it has to wait for on the streams of this worker.
    pub fn waits(&self, worker: u64) -> Waits {
        let mut waits = Waits::new();
        for (view, access) in &self.buffers {
            view.buffer.uses.lock().before(worker, *access, &mut waits);
        }
        waits
    }

    /// Notes that it runs as number `seq` of `stream`.
    pub fn note(&self, worker: u64, stream: u8, seq: u64) {
        for (view, access) in &self.buffers {
            view.buffer.uses.lock().note(worker, *access, (stream, seq));
        }
    }
}

/// An operation that is with the worker.
pub(crate) struct InFlight {
    pub job: Job,
    pub seq: u64,
    /// The ring's position behind its record: the worker has taken it when it passed here.
    pub position: u64,
    pub reply_slot: Option<u32>,
}
