//! The one error type of the project.
//!
//! Every variant says what was asked, where it failed and, where that is not plain, what to do.
//! Errors cross the boundary between worker and application, so they are plain data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// `Result` with [`GpuError`].
pub type Result<T, E = GpuError> = std::result::Result<T, E>;

/// Everything that can go wrong between a call and its result.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GpuError {
    /// The device's bounded queue is full; nothing was queued.
    #[error(
        "device queue is full: {pending} of {capacity} operations wait; retry later or raise `pending_queue_capacity`"
    )]
    Busy {
        /// Operations that wait.
        pending: usize,
        /// The configured bound.
        capacity: usize,
    },

    /// An argument other than a shape or a type is out of its range.
    #[error("{operation}: `{argument}`: {reason}")]
    InvalidArgument {
        /// The operation that refused.
        operation: String,
        /// The argument's name.
        argument: String,
        /// What is wrong with it, with the values.
        reason: String,
    },

    /// A buffer is too small, or shapes do not fit together.
    #[error("{operation}: `{argument}` needs {needed} elements for this shape but holds {found}")]
    ShapeMismatch {
        /// The operation that refused.
        operation: String,
        /// The buffer's name.
        argument: String,
        /// Elements that the shape asks for.
        needed: u64,
        /// Elements there are.
        found: u64,
    },

    /// A product of sizes does not fit into 64 bits.
    #[error("{operation}: the size of `{argument}` overflows: {expression}")]
    SizeOverflow {
        /// The operation that refused.
        operation: String,
        /// The buffer's name.
        argument: String,
        /// The product, with its values.
        expression: String,
    },

    /// A buffer has another element type than the operation asks for.
    #[error("{operation}: `{argument}` is {found}, expected {expected}")]
    DTypeMismatch {
        /// The operation that refused.
        operation: String,
        /// The buffer's name.
        argument: String,
        /// The type the operation asks for.
        expected: DType,
        /// The buffer's type.
        found: DType,
    },

    /// The operation does not exist for this element type.
    #[error("{operation}: {dtype} is not supported; supported: {supported}")]
    DTypeUnsupported {
        /// The operation that refused.
        operation: String,
        /// The type that was given.
        dtype: DType,
        /// The types that would do.
        supported: String,
    },

    /// An output overlaps another argument.
    #[error("{operation}: output `{output}` overlaps `{other}`; outputs must not share memory with other arguments")]
    Aliased {
        /// The operation that refused.
        operation: String,
        /// The output's name.
        output: String,
        /// The argument that it overlaps.
        other: String,
    },

    /// A buffer belongs to another device.
    #[error("{operation}: `{argument}` belongs to {found}, this is {expected}; copy it through the host first")]
    WrongDevice {
        /// The operation that refused.
        operation: String,
        /// The buffer's name.
        argument: String,
        /// This device.
        expected: String,
        /// The buffer's device.
        found: String,
    },

    /// There is not enough device memory.
    #[error("out of memory: {requested} bytes requested, {free} free of {total}{}", if *limited { " (the configured memory limit)" } else { "" })]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free at that moment.
        free: u64,
        /// Bytes of the device, or of the limit.
        total: u64,
        /// Whether `DeviceConfig::memory_limit` and not the device was the bound.
        limited: bool,
    },

    /// The buffer's contents are gone or undefined.
    #[error("{operation}: `{argument}` is stale: {reason}")]
    GpuRefStale {
        /// The operation that refused.
        operation: String,
        /// The buffer's name.
        argument: String,
        /// Why its contents cannot be used.
        reason: StaleReason,
    },

    /// The compute side was lost while this operation was in flight.
    #[error("the device's context was lost while `{operation}` was in flight (candidates: {}): {error}", candidates.join(", "))]
    ContextPoisoned {
        /// The operation whose result is lost.
        operation: String,
        /// What ended the context.
        #[source]
        error: Box<GpuError>,
        /// The operations that were running, oldest first, at most sixteen.
        candidates: Vec<String>,
    },

    /// The operation did not finish in time.
    #[error("{operation}: not finished within its deadline of {deadline:?}")]
    DeadlineExceeded {
        /// The operation.
        operation: String,
        /// The time it was given.
        deadline: Duration,
    },

    /// The operation was taken back before it was sent.
    #[error("{operation}: cancelled before it was sent")]
    Cancelled {
        /// The operation.
        operation: String,
    },

    /// The device gave up; see the source.
    #[error("device {device} has failed: {reason}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// Why it gave up, and what could be done.
        reason: String,
    },

    /// The device is shutting down, or its actor system ended.
    #[error("device {device} is shut down")]
    ShutDown {
        /// The device.
        device: String,
    },

    /// A library call returned a status that is not success.
    #[error("{library}: {function} failed with {code} ({status})")]
    Library {
        /// The library, as NVIDIA names it.
        library: String,
        /// The function that failed.
        function: String,
        /// The library's own number.
        code: i64,
        /// The library's own text.
        status: String,
    },

    /// A CUDA error after which the context cannot be used any more.
    #[error("{function} returned {code} ({status}), which ends the CUDA context{}", hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default())]
    Sticky {
        /// The call that returned it.
        function: String,
        /// `CUresult`.
        code: i64,
        /// CUDA's name and text.
        status: String,
        /// What to do, where something can be done.
        hint: Option<String>,
    },

    /// A shared library could not be loaded.
    #[error("{library} is not available: {reason}; searched: {}", searched.join(", "))]
    LibraryMissing {
        /// The library, as NVIDIA names it.
        library: String,
        /// The file names that were tried.
        searched: Vec<String>,
        /// The loader's answer, or how to get the library.
        reason: String,
    },

    /// An operation's library is not usable on this device.
    #[error("{operation}: library {library} is not available on this device: {reason}")]
    LibraryUnavailable {
        /// The operation.
        operation: String,
        /// The library.
        library: String,
        /// Whether it is not linked, not enabled, or could not start.
        reason: String,
    },

    /// This executor cannot do it.
    #[error("{operation}: not supported by the {executor} executor: {reason}")]
    Unsupported {
        /// The operation.
        operation: String,
        /// `host`, `cuda` or `mock`.
        executor: String,
        /// What is missing.
        reason: String,
    },

    /// The documented answer of a mock device to every operation.
    #[error("{operation}: mock device, nothing is computed (`DeviceConfig::mock`)")]
    Mock {
        /// The operation.
        operation: String,
    },

    /// An operation of a graph could not be captured, or failed when it was run.
    #[error("graph: operation {node}, `{operation}`: {error}")]
    Graph {
        /// The operation's place in the graph, from 0.
        node: usize,
        /// The operation.
        operation: String,
        /// What it met.
        #[source]
        error: Box<GpuError>,
    },

    /// Source code did not compile.
    #[error("{source_name}: compilation failed{}:\n{log}", line.map(|l| format!(" at line {l}")).unwrap_or_default())]
    Compile {
        /// The name given to the source.
        source_name: String,
        /// The line of the first error, where the log names one.
        line: Option<u32>,
        /// The compiler's log.
        log: String,
    },

    /// A matrix has no such factorisation or a routine did not converge.
    #[error("{operation}: {reason} at {index}{}", batch.map(|b| format!(" in problem {b} of the batch")).unwrap_or_default())]
    Numerical {
        /// The operation.
        operation: String,
        /// What the library found: singular, not positive definite, not converged.
        reason: String,
        /// The pivot, minor or count that the library reports, from 1.
        index: u64,
        /// The problem's number in a batch, from 0.
        batch: Option<u64>,
    },

    /// The worker process ended, or was ended.
    #[error("the worker ended: {exit}{}", last_words.as_deref().map(|w| format!("; its last words: {w}")).unwrap_or_default())]
    WorkerLost {
        /// How it ended: signal, exit code, or why it was killed.
        exit: String,
        /// What it wrote before it ended.
        last_words: Option<String>,
    },

    /// The worker could not be started.
    #[error("the worker could not be started: {reason}")]
    WorkerStart {
        /// What failed, and what to do.
        reason: String,
    },

    /// The other side of the ring wrote something that cannot be.
    #[error("protocol violation by the {side}: {reason}")]
    Protocol {
        /// `worker` or `front`.
        side: String,
        /// What was read.
        reason: String,
    },

    /// A system call or a file operation failed.
    #[error("{operation}: {source}")]
    Io {
        /// What was being done, with the path where there is one.
        operation: String,
        /// The system's answer.
        source: IoError,
    },
}

/// Why a buffer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StaleReason {
    /// An operation that did not finish was writing it; overwrite it whole to use it again.
    #[error("`{by}` was writing it and did not finish; overwrite it whole to use it again")]
    Tainted {
        /// The operation that did not finish.
        by: String,
    },
    /// Its memory went with an earlier incarnation of the device.
    #[error("it was made in generation {buffer}, the device is in generation {device}")]
    Generation {
        /// When it was made.
        buffer: u64,
        /// The device's now.
        device: u64,
    },
}

/// An operating-system error as plain data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct IoError {
    /// `errno`, where there is one.
    pub code: Option<i32>,
    /// The system's text.
    pub message: String,
}

impl GpuError {
    /// Wraps an operating-system error with what was being done.
    pub fn io(operation: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        let error = error.into();
        GpuError::Io {
            operation: operation.into(),
            source: IoError { code: error.raw_os_error(), message: error.to_string() },
        }
    }

    /// An argument out of range.
    pub fn invalid(operation: impl Into<String>, argument: impl Into<String>, reason: impl Into<String>) -> Self {
        GpuError::InvalidArgument { operation: operation.into(), argument: argument.into(), reason: reason.into() }
    }

    /// Whether the context that returned it cannot be used any more.
    pub fn is_sticky(&self) -> bool {
        match self {
            GpuError::Sticky { .. } | GpuError::WorkerLost { .. } | GpuError::Protocol { .. } => true,
            GpuError::Graph { error, .. } => error.is_sticky(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn errors_cross_the_wire_and_keep_their_source() {
        let error = GpuError::ContextPoisoned {
            operation: "cublas.gemm".into(),
            error: Box::new(GpuError::Sticky {
                function: "cuStreamQuery".into(),
                code: 700,
                status: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
                hint: None,
            }),
            candidates: vec!["cublas.gemm".into()],
        };
        let bytes = postcard::to_allocvec(&error).expect("plain data");
        let back: GpuError = postcard::from_bytes(&bytes).expect("plain data");
        assert_eq!(back, error);
        assert!(back.source().expect("a source").to_string().contains("700"));
    }
}
