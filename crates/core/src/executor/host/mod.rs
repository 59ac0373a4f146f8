//! The host executor: real results on the CPU, with the same streams, segments and fail-over.

mod backend;
mod call;
mod core_ops;

pub(crate) use backend::HostBackend;
pub use call::{HostCall, HostLibrary, HostSetup};
