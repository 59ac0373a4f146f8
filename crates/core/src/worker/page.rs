//! The page that front and worker share: rings, counters, reply slots, last words.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::executor::backend::{MAX_STREAMS, SharedPage};
use crate::memory::{Mapping, sealed_memfd};
use crate::operation::MAX_REPLY_BYTES;

use super::ring::Positions;

const LINE: usize = 64;
const WORDS_AT: usize = 0;
const COUNTERS_AT: usize = 16 * LINE;
const LAST_WORDS_AT: usize = 4096;
const LAST_WORDS_BYTES: usize = 4096;
const REPLIES_AT: usize = LAST_WORDS_AT + LAST_WORDS_BYTES;
/// Reply slots: as many operations with a reply may be in flight.
pub(crate) const REPLY_SLOTS: usize = 1023;
/// The slot behind them, for the replies of rehearsals.
pub(crate) const REHEARSAL_SLOT: u32 = REPLY_SLOTS as u32;
const RING_AT: usize = REPLIES_AT + (REPLY_SLOTS + 1) * MAX_REPLY_BYTES;
const RING_BYTES: usize = 1 << 20;
const MAIL_AT: usize = RING_AT + RING_BYTES;
const MAIL_BYTES: usize = 1 << 18;
/// Bytes of the whole page.
pub(crate) const PAGE_BYTES: usize = MAIL_AT + MAIL_BYTES;

/// The largest record that the operation ring takes.
pub(crate) const MAX_RECORD_WORDS: usize = RING_BYTES / 8 / 2;

#[derive(Clone, Copy)]
enum Word {
    OpsHead,
    OpsTail,
    OpsSleeping,
    MailHead,
    MailTail,
    MailSleeping,
    LastWords,
}

/// A mapping of the shared page.
#[derive(Debug)]
pub(crate) struct Page {
    mapping: Arc<Mapping>,
}

impl Page {
    /// A new page and the descriptor to hand to the worker.
    pub fn create() -> Result<(Self, OwnedFd)> {
        let fd = sealed_memfd("atomr-cuda-page", PAGE_BYTES as u64)?;
        Ok((Self::map(&fd)?, fd))
    }

    /// Maps a page that was handed over.
    pub fn map(fd: &OwnedFd) -> Result<Self> {
        Ok(Page { mapping: Arc::new(Mapping::new(fd, PAGE_BYTES)?) })
    }

    /// The page as an executor sees it.
    pub fn shared(&self) -> SharedPage {
        SharedPage { mapping: self.mapping.clone(), counters_at: COUNTERS_AT }
    }

    fn atomics(&self, at: usize, count: usize) -> &[AtomicU64] {
        debug_assert!(at.is_multiple_of(8) && at + count * 8 <= PAGE_BYTES);
        // SAFETY: the range lies inside the mapping, which lives as long as `self`, is aligned to a
        // page, and is only ever accessed as atomics by either process.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(at).cast::<AtomicU64>(), count) }
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        &self.atomics(WORDS_AT + word as usize * LINE, 1)[0]
    }

    /// The counter of a stream.
    pub fn counter(&self, stream: usize) -> &AtomicU64 {
        &self.atomics(COUNTERS_AT + stream.min(MAX_STREAMS - 1) * LINE, 1)[0]
    }

    /// Positions of the ring of operations, front to worker.
    pub fn ops(&self) -> (Positions<'_>, &[AtomicU64]) {
        let at = Positions {
            head: self.word(Word::OpsHead),
            tail: self.word(Word::OpsTail),
            sleeping: self.word(Word::OpsSleeping),
        };
        (at, self.atomics(RING_AT, RING_BYTES / 8))
    }

    /// Positions of the ring of mail, worker to front.
    pub fn mail(&self) -> (Positions<'_>, &[AtomicU64]) {
        let at = Positions {
            head: self.word(Word::MailHead),
            tail: self.word(Word::MailTail),
            sleeping: self.word(Word::MailSleeping),
        };
        (at, self.atomics(MAIL_AT, MAIL_BYTES / 8))
    }

    /// The word that the worker sleeps on.
    pub fn sleeping(&self) -> &AtomicU64 {
        self.word(Word::OpsSleeping)
    }

    /// Operation words that the worker has taken.
    pub fn ops_taken(&self) -> u64 {
        self.word(Word::OpsHead).load(Ordering::Acquire)
    }

    /// Where reply slot `slot` lies.
    pub fn reply_at(slot: u32) -> u32 {
        (REPLIES_AT + slot as usize * MAX_REPLY_BYTES) as u32
    }

    /// Copies a reply out.
    pub fn read_reply(&self, slot: u32, bytes: usize) -> Vec<u8> {
        self.read(Self::reply_at(slot) as usize, bytes.min(MAX_REPLY_BYTES))
    }

    /// Writes a reply (host executor).
    pub fn write_reply(&self, at: u32, bytes: &[u8]) {
        self.write(at as usize, &bytes[..bytes.len().min(MAX_REPLY_BYTES)]);
    }

    /// Leaves bytes for the front to find when the worker is gone.
    pub fn leave_last_words(&self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(LAST_WORDS_BYTES)];
        self.write(LAST_WORDS_AT, bytes);
        self.word(Word::LastWords).store(bytes.len() as u64, Ordering::Release);
    }

    /// What the worker left, if it left anything.
    pub fn last_words(&self) -> Option<Vec<u8>> {
        let len = self.word(Word::LastWords).load(Ordering::Acquire) as usize;
        (len > 0).then(|| self.read(LAST_WORDS_AT, len.min(LAST_WORDS_BYTES)))
    }

    fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let words = self.atomics(at, bytes.div_ceil(8));
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        out.truncate(bytes);
        out
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (word, chunk) in self.atomics(at, bytes.len().div_ceil(8)).iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
    }
}
