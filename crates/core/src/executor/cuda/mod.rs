//! The CUDA executor: one context, its streams and library handles, on `cudarc`.

mod backend;
mod call;
mod core_ops;
mod driver;
#[cfg(feature = "fault")]
mod fault;
mod graph;
mod per_stream;
mod scratch;
mod segments;

pub(crate) use backend::CudaBackend;
pub use call::{CudaCall, CudaLibrary, CudaSetup};
pub use driver::{check_driver, cuda_available, device_count, require_library};
pub use per_stream::PerStream;
