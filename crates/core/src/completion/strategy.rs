//! How completion is noticed, and how much processor time that may cost.

use std::time::Duration;

/// How the front learns that operations have finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompletionStrategy {
    /// The executor writes a counter in shared memory; on CUDA the GPU writes it
    /// (`cuStreamWriteValue64`). The fastest, and the default.
    #[default]
    Counter,
    /// Every call blocks the submitting thread until it has finished. Simple to reason about, and slow.
    Synchronous,
}

/// How long waiters and the reactor spin before they sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Latency {
    /// Spin for a millisecond, and up to 25 microseconds inside a future's poll. Lowest latency; a
    /// waiting thread keeps a core busy.
    LowLatency,
    /// Spin for 50 microseconds, two inside a future's poll.
    #[default]
    Balanced,
    /// Hardly spin.
    LowCpu,
}

impl Latency {
    /// How long a blocked thread or the reactor spins.
    pub(crate) fn spin(self) -> Duration {
        match self {
            Latency::LowLatency => Duration::from_millis(1),
            Latency::Balanced => Duration::from_micros(50),
            Latency::LowCpu => Duration::ZERO,
        }
    }

    /// How long a future's poll may spin.
    pub(crate) fn poll_spin(self) -> Duration {
        match self {
            Latency::LowLatency => Duration::from_micros(25),
            Latency::Balanced => Duration::from_micros(2),
            Latency::LowCpu => Duration::ZERO,
        }
    }
}
