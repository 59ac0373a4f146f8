//! How a device is to be run.

use std::path::PathBuf;
use std::time::Duration;

use crate::completion::{CompletionStrategy, Latency};
use crate::executor::{ExecutorKind, cuda};
use crate::operation::EnabledLibraries;

use super::streams::StreamPolicy;

/// Where the executor lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// In a worker process: a fault ends the worker, not the application, and buffers survive.
    #[default]
    Process,
    /// On a thread of the application, for code that must share the raw context or stream. A sticky
    /// CUDA error then fails the device for good.
    Thread,
}

/// Whether a second worker stands by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SparePolicy {
    /// A started worker waits with every segment mapped: fail-over takes about a millisecond. It
    /// costs a second process and, on CUDA, a second context (some hundred MiB of device memory).
    #[default]
    Warm,
    /// A worker is started when the old one is lost.
    Cold,
}

/// How many restarts are allowed before the device gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Restarts within the window; one more fails the device. Default: 10.
    pub max_restarts: u32,
    /// The window. Default: one minute.
    pub window: Duration,
    /// Pause before a worker that could not be started is tried again. Default: 100 ms.
    pub backoff: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy { max_restarts: 10, window: Duration::from_secs(60), backoff: Duration::from_millis(100) }
    }
}

/// The configuration of a device. Plain data with builder methods.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Which executor; `None` is a mock: supervision only, every operation answers
    /// [`GpuError::Mock`](crate::GpuError::Mock).
    pub executor: Option<ExecutorKind>,
    /// The device's number among those of its kind.
    pub ordinal: u32,
    /// The libraries to bring up. Default: BLAS.
    pub libraries: EnabledLibraries,
    /// Where the executor lives. Default: a process.
    pub isolation: Isolation,
    /// Whether a spare stands by. Default: warm.
    pub spare: SparePolicy,
    /// Bounds on restarts.
    pub restart: RestartPolicy,
    /// Operations that may wait in the front, for each client ([`Device::client`](super::Device::client)).
    /// Default: 65,536.
    pub pending_queue_capacity: usize,
    /// Operations that may be with the worker at a time, 1 to 65,536. Default: 1,024. What is with
    /// the worker is lost with it; what waits is not.
    pub max_in_flight: usize,
    /// Most bytes of device memory that segments may take. Default: no limit.
    pub memory_limit: Option<u64>,
    /// Most bytes of pinned host memory, unused memory in the pool included. Default: no limit.
    pub host_memory_limit: Option<u64>,
    /// Bytes of a segment; larger buffers get one of their own. Default: 256 MiB.
    pub segment_bytes: u64,
    /// How operations are spread over streams. Default: one stream.
    pub streams: StreamPolicy,
    /// How completion is noticed.
    pub completion: CompletionStrategy,
    /// How long waiters spin.
    pub latency: Latency,
    /// Deadline of every operation that sets none. Default: none.
    pub deadline: Option<Duration>,
    /// The executable of worker processes. Default: this program, if it called
    /// [`worker::init`](crate::worker::init).
    pub worker_executable: Option<PathBuf>,
    /// How long a worker may take to start. Default: 60 s.
    pub start_timeout: Duration,
}

impl DeviceConfig {
    /// The CUDA device with this ordinal.
    pub fn new(ordinal: u32) -> Self {
        Self::with_executor(Some(ExecutorKind::Cuda), ordinal)
    }

    /// A host device: real results on the CPU. The ordinal only names it.
    pub fn host(ordinal: u32) -> Self {
        Self::with_executor(Some(ExecutorKind::Host), ordinal)
    }

    /// A mock device: supervision only. Every operation, allocations included, answers
    /// [`GpuError::Mock`](crate::GpuError::Mock).
    pub fn mock(ordinal: u32) -> Self {
        Self::with_executor(None, ordinal)
    }

    /// CUDA device 0 if there is one, else a host device.
    pub fn auto() -> Self {
        if cuda::cuda_available() { Self::new(0) } else { Self::host(0) }
    }

    fn with_executor(executor: Option<ExecutorKind>, ordinal: u32) -> Self {
        DeviceConfig {
            executor,
            ordinal,
            libraries: EnabledLibraries::default(),
            isolation: Isolation::default(),
            spare: SparePolicy::default(),
            restart: RestartPolicy::default(),
            pending_queue_capacity: 65_536,
            max_in_flight: 1024,
            memory_limit: None,
            host_memory_limit: None,
            segment_bytes: 256 << 20,
            streams: StreamPolicy::default(),
            completion: CompletionStrategy::default(),
            latency: Latency::default(),
            deadline: None,
            worker_executable: None,
            start_timeout: Duration::from_secs(60),
        }
    }

    /// Sets the libraries to bring up.
    pub fn libraries(mut self, libraries: EnabledLibraries) -> Self {
        self.libraries = libraries;
        self
    }

    /// Sets where the executor lives.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Sets whether a spare stands by.
    pub fn spare(mut self, spare: SparePolicy) -> Self {
        self.spare = spare;
        self
    }

    /// Sets the bounds on restarts.
    pub fn restart_policy(mut self, restart: RestartPolicy) -> Self {
        self.restart = restart;
        self
    }

    /// Sets how many operations may wait in the front.
    pub fn pending_queue_capacity(mut self, capacity: usize) -> Self {
        self.pending_queue_capacity = capacity;
        self
    }

    /// Sets how many operations may be with the worker.
    pub fn max_in_flight(mut self, operations: usize) -> Self {
        self.max_in_flight = operations;
        self
    }

    /// Limits device memory.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Limits pinned host memory.
    pub fn host_memory_limit(mut self, bytes: u64) -> Self {
        self.host_memory_limit = Some(bytes);
        self
    }

    /// Sets the bytes of a segment.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets how operations are spread over streams.
    pub fn streams(mut self, policy: StreamPolicy) -> Self {
        self.streams = policy;
        self
    }

    /// Sets how completion is noticed.
    pub fn completion(mut self, strategy: CompletionStrategy) -> Self {
        self.completion = strategy;
        self
    }

    /// Sets how long waiters spin.
    pub fn latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// Sets the deadline of operations that set none.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Names the executable of worker processes.
    pub fn worker_executable(mut self, path: impl Into<PathBuf>) -> Self {
        self.worker_executable = Some(path.into());
        self
    }

    /// Sets how long a worker may take to start.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// `cuda:0`, `host:0` or `mock:0`.
    pub fn label(&self) -> String {
        match self.executor {
            Some(kind) => format!("{kind}:{}", self.ordinal),
            None => format!("mock:{}", self.ordinal),
        }
    }
}
