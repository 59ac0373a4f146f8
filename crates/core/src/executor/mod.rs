//! The back: what carries operations out. It knows no actor.
//!
//! A library supplies one half for each executor: [`HostLibrary`] on the CPU, [`CudaLibrary`] on
//! the GPU. Both are handed a call: the operation's parameters, its buffers in the order of its
//! arguments, and a place for its reply.

pub(crate) mod backend;
pub mod cuda;
pub mod host;

use serde::{Deserialize, Serialize};

use crate::error::{GpuError, Result};
use crate::operation::LibraryId;

pub use cuda::{CudaCall, CudaLibrary, CudaSetup};
pub use host::{HostCall, HostLibrary, HostSetup};

/// Which executor a device runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecutorKind {
    /// The CPU.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

impl std::fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ExecutorKind::Host => "host",
            ExecutorKind::Cuda => "cuda",
        })
    }
}

/// What a library made of a call.
pub enum Step {
    /// Carried out (host) or enqueued on the stream (CUDA).
    Done,
    /// Something slow comes first. The task runs on a side thread; when it returns `Ok`, the same
    /// call is made again and finds the result in the library's own cache. Only operations of the
    /// same stream wait for it.
    Later(SideTask),
}

/// Slow work that must not run on the enqueue thread: compiling, searching, planning.
pub type SideTask = Box<dyn FnOnce() -> Result<()> + Send>;

/// The error for an operation number that this half of the library does not have.
pub fn unknown_operation(library: LibraryId, code: u16) -> GpuError {
    GpuError::Protocol { side: "front".into(), reason: format!("{library} has no operation number {code}") }
}
