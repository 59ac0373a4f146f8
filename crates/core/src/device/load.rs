//! What a device is doing.

use crate::error::GpuError;
use crate::executor::ExecutorKind;

use super::front::DevicePhase;

/// A device's load at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLoad {
    /// `cuda:0`, `host:0`.
    pub device: String,
    /// The device's name as its driver reports it.
    pub name: String,
    /// Its state.
    pub phase: DevicePhase,
    /// Which executor carries out its operations; `None` for a mock.
    pub executor: Option<ExecutorKind>,
    /// Free bytes of the device, from the executor.
    pub free_bytes: u64,
    /// Total bytes of the device.
    pub total_bytes: u64,
    /// Bytes in buffers that are alive.
    pub used_bytes: u64,
    /// Bytes in segments, used or not.
    pub reserved_bytes: u64,
    /// Bytes of pinned host memory in buffers that are alive.
    pub host_used_bytes: u64,
    /// Bytes of pinned host memory in the pool, used or not.
    pub host_reserved_bytes: u64,
    /// Streams with operations in flight.
    pub active_streams: u32,
    /// Operations that wait in the front.
    pub queue_depth: usize,
    /// Operations with the worker.
    pub in_flight: usize,
    /// Operations finished since the device was opened.
    pub completed: u64,
    /// Workers lost since the device was opened.
    pub losses: u64,
    /// Whether a spare stands by.
    pub spare_ready: bool,
    /// Compute capability; `None` on the host.
    pub compute_capability: Option<(u32, u32)>,
    /// The incarnation of the compute side.
    pub generation: u64,
}

/// A library's state on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct LibraryStatus {
    /// The library's name.
    pub name: String,
    /// Whether it can be used.
    pub state: LibraryState,
}

/// Whether a library can be used, and why not.
#[derive(Debug, Clone, PartialEq)]
pub enum LibraryState {
    /// It is up; its version as it reports it.
    Ready(String),
    /// It is linked, but was not enabled in the configuration.
    Disabled,
    /// It was enabled, but no crate that provides it is linked.
    NotLinked,
    /// It could not start.
    Unavailable(GpuError),
    /// The device is not up yet.
    Starting,
}

impl std::fmt::Display for LibraryStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            LibraryState::Ready(version) => write!(f, "{}: ready ({version})", self.name),
            LibraryState::Disabled => write!(f, "{}: linked, not enabled", self.name),
            LibraryState::NotLinked => write!(f, "{}: enabled, not linked", self.name),
            LibraryState::Unavailable(error) => write!(f, "{}: {error}", self.name),
            LibraryState::Starting => write!(f, "{}: starting", self.name),
        }
    }
}
