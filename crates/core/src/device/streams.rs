//! Which stream an operation runs on.

use crate::executor::backend::MAX_STREAMS;
use crate::memory::Waits;
use crate::operation::LibraryId;

/// How operations are spread over the device's streams.
///
/// Whatever the policy, results are those of the order of submission: an operation waits for those
/// before it that wrote what it uses, and for those that read what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StreamPolicy {
    /// One stream: operations run one after the other. The default, and the cheapest to submit.
    #[default]
    Single,
    /// One stream a library, and one for copies and fills.
    PerLibrary,
    /// Several streams. An operation goes to the stream of what it waits for, else to the one with
    /// the least to do.
    Pool {
        /// Streams of normal priority, 1 to 15.
        normal: u8,
        /// Streams of high priority, for calls with [`Priority::High`]; 0 to 15, and at most 16 in all.
        high: u8,
    },
}

/// Which streams of a pool a call may run on. On a GPU, blocks of high-priority streams are
/// scheduled before those of normal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// As everything else.
    #[default]
    Normal,
    /// Before normal work, where the policy has streams for that.
    High,
}

impl StreamPolicy {
    /// Streams that the worker makes: of normal and of high priority; the high ones come last.
    pub(crate) fn counts(self) -> (u8, u8) {
        match self {
            StreamPolicy::Single => (1, 0),
            StreamPolicy::PerLibrary => (MAX_STREAMS as u8, 0),
            StreamPolicy::Pool { normal, high } => (normal, high),
        }
    }

    /// Whether the worker can make as many.
    pub(crate) fn is_valid(self) -> bool {
        let (normal, high) = self.counts();
        normal >= 1 && usize::from(normal) + usize::from(high) <= MAX_STREAMS
    }
}

/// The choice of streams for one worker.
pub(crate) struct Streams {
    policy: StreamPolicy,
    /// Under [`StreamPolicy::PerLibrary`], the library of each stream.
    libraries: Vec<LibraryId>,
}

impl Streams {
    pub fn new(policy: StreamPolicy) -> Self {
        Streams { policy, libraries: vec![LibraryId::CORE] }
    }

    /// The stream for an operation that has to wait for `waits`; `load` says how much each has to do.
    pub fn pick(&mut self, library: LibraryId, priority: Priority, waits: &Waits, load: impl Fn(u8) -> usize) -> u8 {
        match self.policy {
            StreamPolicy::Single => 0,
            StreamPolicy::PerLibrary => match self.libraries.iter().position(|known| *known == library) {
                Some(stream) => stream as u8,
                None if self.libraries.len() < MAX_STREAMS => {
                    self.libraries.push(library);
                    self.libraries.len() as u8 - 1
                }
                None => MAX_STREAMS as u8 - 1,
            },
            StreamPolicy::Pool { normal, high } => {
                let streams = if priority == Priority::High && high > 0 { normal..normal + high } else { 0..normal };
                let awaited = waits.iter().rev().map(|(stream, _)| *stream).find(|stream| streams.contains(stream));
                let idle = || streams.clone().min_by_key(|stream| load(*stream));
                awaited.or_else(idle).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_follows_what_is_awaited_and_else_takes_the_idlest() {
        let mut streams = Streams::new(StreamPolicy::Pool { normal: 3, high: 2 });
        let load = |stream: u8| [5, 2, 9, 1, 0][usize::from(stream)];
        let library = LibraryId::CORE;
        let waits = |points: &[(u8, u64)]| points.iter().copied().collect::<Waits>();
        assert_eq!(streams.pick(library, Priority::Normal, &waits(&[]), load), 1);
        assert_eq!(streams.pick(library, Priority::Normal, &waits(&[(2, 7)]), load), 2);
        assert_eq!(streams.pick(library, Priority::High, &waits(&[(2, 7)]), load), 4);
        assert_eq!(streams.pick(library, Priority::High, &waits(&[(3, 7), (2, 1)]), load), 3);
    }

    #[test]
    fn what_a_worker_cannot_make_is_not_valid() {
        assert!(StreamPolicy::Pool { normal: 8, high: 8 }.is_valid());
        assert!(!StreamPolicy::Pool { normal: 9, high: 8 }.is_valid());
        assert!(!StreamPolicy::Pool { normal: 0, high: 1 }.is_valid());
        assert!(!StreamPolicy::Pool { normal: 255, high: 255 }.is_valid());
    }
}
