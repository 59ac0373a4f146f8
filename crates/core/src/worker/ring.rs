//! A bounded queue of records between one producer and one consumer in shared memory.
//!
//! Every word is an atomic, so that whatever the other process writes, at whatever moment, is at
//! worst a wrong value and never undefined behaviour. Each side keeps its own position in its own
//! memory and only *publishes* it; the other side's published position is checked before use.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What the two sides publish. `head` and `tail` count words since the beginning and never wrap.
pub struct Positions<'a> {
    /// Words consumed, written by the consumer.
    pub head: &'a AtomicU64,
    /// Words produced, written by the producer.
    pub tail: &'a AtomicU64,
    /// 1 while the consumer sleeps.
    pub sleeping: &'a AtomicU64,
}

/// The other side published a position that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt {
    /// The position that was read.
    pub found: u64,
    /// This side's own position.
    pub own: u64,
}

/// Why a record could not be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushError {
    /// There is no room now.
    Full,
    /// It is larger than the ring could ever hold.
    TooLarge,
    /// The consumer's position cannot be.
    Corrupt(Corrupt),
}

/// The producing end. A record is one length word and its payload, contiguous modulo the ring.
#[derive(Debug, Default)]
pub struct Producer {
    tail: u64,
    head_seen: u64,
}

impl Producer {
    /// Copies `record` in and publishes it. Returns the position behind it.
    pub fn push(&mut self, at: &Positions<'_>, words: &[AtomicU64], record: &[u64]) -> Result<u64, PushError> {
        let capacity = words.len() as u64;
        let needed = record.len() as u64 + 1;
        if needed > capacity {
            return Err(PushError::TooLarge);
        }
        if capacity - (self.tail - self.head_seen) < needed {
            let head = at.head.load(Ordering::Acquire);
            if head < self.head_seen || head > self.tail {
                return Err(PushError::Corrupt(Corrupt { found: head, own: self.tail }));
            }
            self.head_seen = head;
            if capacity - (self.tail - head) < needed {
                return Err(PushError::Full);
            }
        }
        let slot = |position: u64| &words[(position % capacity) as usize];
        slot(self.tail).store(record.len() as u64, Ordering::Relaxed);
        let start = ((self.tail + 1) % capacity) as usize;
        let first = record.len().min(words.len() - start);
        for (word, value) in words[start..start + first].iter().zip(record) {
            word.store(*value, Ordering::Relaxed);
        }
        for (word, value) in words.iter().zip(&record[first..]) {
            word.store(*value, Ordering::Relaxed);
        }
        self.tail += needed;
        at.tail.store(self.tail, Ordering::Release);
        Ok(self.tail)
    }

    /// Whether the consumer announced that it sleeps and must be woken. Call after `push`.
    pub fn must_wake(&self, at: &Positions<'_>) -> bool {
        fence(Ordering::SeqCst);
        at.sleeping.load(Ordering::Relaxed) != 0 && at.sleeping.swap(0, Ordering::AcqRel) != 0
    }
}

/// The consuming end.
#[derive(Debug, Default)]
pub struct Consumer {
    head: u64,
    /// The producer's position when it was last looked at: looking again means fetching its cache line
    /// from another core.
    tail_seen: u64,
}

impl Consumer {
    /// Copies the oldest record out, into `record`. `Ok(false)` when there is none.
    pub fn pop(&mut self, at: &Positions<'_>, words: &[AtomicU64], record: &mut Vec<u64>) -> Result<bool, Corrupt> {
        let capacity = words.len() as u64;
        if self.tail_seen == self.head {
            let tail = at.tail.load(Ordering::Acquire);
            if tail == self.head {
                return Ok(false);
            }
            if tail < self.head || tail - self.head > capacity {
                return Err(Corrupt { found: tail, own: self.head });
            }
            self.tail_seen = tail;
        }
        let slot = |position: u64| &words[(position % capacity) as usize];
        let len = slot(self.head).load(Ordering::Relaxed);
        if len >= self.tail_seen - self.head {
            return Err(Corrupt { found: len, own: self.head });
        }
        let start = ((self.head + 1) % capacity) as usize;
        let first = (len as usize).min(words.len() - start);
        record.clear();
        record.extend(words[start..start + first].iter().map(|word| word.load(Ordering::Relaxed)));
        record.extend(words[..len as usize - first].iter().map(|word| word.load(Ordering::Relaxed)));
        self.head += len + 1;
        at.head.store(self.head, Ordering::Release);
        if self.tail_seen != self.head {
            prefetch(words, (self.head % capacity) as usize);
        }
        Ok(true)
    }

    /// Whether a record waits.
    pub fn has_record(&self, at: &Positions<'_>) -> bool {
        at.tail.load(Ordering::Acquire) != self.head
    }

    /// Announces that the consumer is about to sleep. `false`: a record came meanwhile, do not.
    pub fn prepare_sleep(&self, at: &Positions<'_>) -> bool {
        at.sleeping.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if at.tail.load(Ordering::Acquire) == self.head {
            return true;
        }
        at.sleeping.store(0, Ordering::Relaxed);
        false
    }
}

/// Has the processor fetch the beginning of the next record, which another core wrote, while this one
/// is carried out.
#[cfg(all(target_arch = "x86_64", not(loom)))]
fn prefetch(words: &[AtomicU64], at: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const LINE_WORDS: usize = 8;
    for word in words[at..].iter().step_by(LINE_WORDS).take(4) {
        // SAFETY: a hint; it reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
fn prefetch(_words: &[AtomicU64], _at: usize) {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Shared {
        words: Vec<AtomicU64>,
        head: AtomicU64,
        tail: AtomicU64,
        sleeping: AtomicU64,
    }

    impl Shared {
        fn new(words: usize) -> Self {
            let zero = || AtomicU64::new(0);
            Shared { words: (0..words).map(|_| zero()).collect(), head: zero(), tail: zero(), sleeping: zero() }
        }

        fn at(&self) -> Positions<'_> {
            Positions { head: &self.head, tail: &self.tail, sleeping: &self.sleeping }
        }
    }

    #[test]
    fn records_of_every_size_come_out_as_they_went_in() {
        let shared = Shared::new(13);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        let mut out = Vec::new();
        for len in (0..=12).chain(0..=12) {
            let record: Vec<u64> = (0..len).map(|i| len * 100 + i).collect();
            producer.push(&shared.at(), &shared.words, &record).expect("room");
            assert!(consumer.pop(&shared.at(), &shared.words, &mut out).expect("sound"));
            assert_eq!(out, record);
        }
        assert_eq!(producer.push(&shared.at(), &shared.words, &[0; 13]), Err(PushError::TooLarge));
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let shared = Shared::new(8);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        producer.push(&shared.at(), &shared.words, &[1, 2, 3]).expect("room");
        producer.push(&shared.at(), &shared.words, &[4, 5, 6]).expect("room");
        assert_eq!(producer.push(&shared.at(), &shared.words, &[7]), Err(PushError::Full));
        let mut out = Vec::new();
        assert!(consumer.pop(&shared.at(), &shared.words, &mut out).expect("sound"));
        producer.push(&shared.at(), &shared.words, &[7]).expect("room");
    }

    #[test]
    fn scribbled_positions_and_lengths_are_found_out() {
        let shared = Shared::new(8);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        let mut out = Vec::new();
        for tail in [u64::MAX, 9, 100] {
            shared.tail.store(tail, Ordering::Relaxed);
            assert!(consumer.pop(&shared.at(), &shared.words, &mut out).is_err());
        }
        shared.tail.store(0, Ordering::Relaxed);
        producer.push(&shared.at(), &shared.words, &[1, 2]).expect("room");
        shared.words[0].store(u64::MAX, Ordering::Relaxed);
        assert!(consumer.pop(&shared.at(), &shared.words, &mut out).is_err());
        shared.head.store(77, Ordering::Relaxed);
        assert!(matches!(producer.push(&shared.at(), &shared.words, &[0; 7]), Err(PushError::Corrupt(_))));
    }
}
