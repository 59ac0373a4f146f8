//! What a spare rehearses, so that its first operation after a fail-over is as fast as any.
//!
//! The first use of an operation in a process is slow: kernels are loaded, handles and plans made.
//! Because operations are data, the front keeps one of each kind it has sent and gives them to the
//! spare, which carries them out on scratch memory.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::executor::backend::{BufferDesc, SCRATCH_SEGMENT};
use crate::memory::Space;
use crate::operation::{Access, Lane};
use crate::worker::{FrameHeader, Page, REHEARSAL_SLOT, encode_frame};

use super::job::Job;

/// Kinds that are kept.
const KINDS: usize = 128;
/// One in so many operations is looked at.
const SAMPLE: u64 = 8;
/// A spare gives no more memory than this to one operation.
const MOST_BYTES: u64 = 256 << 20;
/// The largest record, so that it fits a message.
const MOST_WORDS: usize = 8 << 10;

/// The kinds of operations that were sent, and which spare knows how many of them.
#[derive(Default)]
pub(crate) struct Rehearsal {
    known: HashSet<u64>,
    records: Vec<Vec<u64>>,
    told: HashMap<u64, usize>,
}

impl Rehearsal {
    /// Looks at an operation that was sent, now and then.
    pub fn observe(&mut self, job: &Job, stream: u8) {
        if !job.ticket.id.is_multiple_of(SAMPLE) || !job.rehearse || job.lane == Lane::Side {
            return;
        }
        if self.records.len() >= KINDS || job.buffers.iter().map(|(view, _)| view.bytes).sum::<u64>() > MOST_BYTES {
            return;
        }
        let mut hash = DefaultHasher::new();
        (job.library, job.code, stream, &job.params).hash(&mut hash);
        job.buffers.iter().for_each(|(view, _)| (view.bytes, view.dtype() as u8).hash(&mut hash));
        if !self.known.insert(hash.finish()) {
            return;
        }
        let header = FrameHeader {
            ticket: 0,
            stream: Some(stream),
            seq: 0,
            library: job.library,
            code: job.code,
            reply_at: (job.reply_bytes > 0).then(|| Page::reply_at(REHEARSAL_SLOT)),
        };
        let descs = job.buffers.iter().map(|(view, access)| {
            // Blobs are what they were; everything else is made up.
            let (segment, offset) = match view.frozen && view.buffer.space == Space::Host {
                true => view.buffer.location(),
                false => (SCRATCH_SEGMENT, 0),
            };
            let whole = *access == Access::Write && view.is_whole();
            BufferDesc { id: 0, segment, offset, bytes: view.bytes, access: *access, dtype: view.dtype(), whole }
        });
        let mut record = Vec::new();
        encode_frame(&mut record, &header, &[], descs, &job.params);
        if record.len() <= MOST_WORDS {
            self.records.push(record);
        }
    }

    /// The next kind that this spare has not been told of.
    pub fn next_for(&mut self, spare: u64) -> Option<Vec<u64>> {
        let told = self.told.entry(spare).or_default();
        let record = self.records.get(*told)?.clone();
        *told += 1;
        Some(record)
    }

    /// A worker is gone. A spare that ended by itself may have ended over a rehearsal: what it was
    /// told of is not rehearsed again.
    pub fn forget(&mut self, worker: u64, was_spare: bool) {
        if let Some(told) = self.told.remove(&worker)
            && was_spare
            && told > 0
        {
            self.records.clear();
            self.told.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::super::streams::Priority;
    use super::*;
    use crate::completion::Ticket;
    use crate::operation::LibraryId;

    fn job(id: u64, code: u16, rehearse: bool) -> Job {
        Job {
            ticket: Ticket::new(id, "test"),
            library: LibraryId::CORE,
            code,
            lane: Lane::Stream,
            priority: Priority::Normal,
            client: 0,
            rehearse,
            reply_bytes: 0,
            deadline: None,
            buffers: SmallVec::new(),
            params: SmallVec::new(),
        }
    }

    #[test]
    fn each_kind_is_told_once_to_each_spare() {
        let mut rehearsal = Rehearsal::default();
        for (id, code) in [(8, 1), (16, 1), (24, 2), (25, 3)] {
            rehearsal.observe(&job(id, code, true), 0);
        }
        rehearsal.observe(&job(32, 4, false), 0);
        let told = |rehearsal: &mut Rehearsal, spare| std::iter::from_fn(|| rehearsal.next_for(spare)).count();
        assert_eq!(told(&mut rehearsal, 5), 2);
        assert_eq!(told(&mut rehearsal, 5), 0);
        assert_eq!(told(&mut rehearsal, 6), 2);
        rehearsal.forget(5, false);
        assert_eq!(told(&mut rehearsal, 7), 2);
        rehearsal.forget(7, true);
        assert_eq!(told(&mut rehearsal, 8), 0, "what ended a spare is not rehearsed again");
    }
}
