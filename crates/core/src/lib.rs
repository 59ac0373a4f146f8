//! GPU devices as supervised actors.
//!
//! A [`Device`] is an address that stays good for the life of a service: through kernels that write
//! to a bad address, kernels that never end, driver errors and out-of-memory. Its *front* lives in
//! the application and makes no CUDA call; its *back*, the executor, lives in a worker process.
//! Libraries (cuBLAS, ...) are crates of their own that register themselves; this crate knows none.
//!
//! ```
//! use atomr_core::prelude::{ActorSystem, Config};
//! use atomr_cuda_core::{Device, DeviceConfig};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     atomr_cuda_core::worker::init(); // becomes the worker when started as one
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let system = ActorSystem::create("app", Config::reference()).await?;
//!         let device = Device::open(&system, DeviceConfig::host(0)).await?;
//!         let buffer = device.upload(&[1.0f32, 2.0, 3.0]).await?;
//!         device.fill(&buffer.slice(1..)?, 7.0).await?;
//!         assert_eq!(device.download(&buffer).await?, [1.0, 7.0, 7.0]);
//!         device.shutdown().await;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! What can go wrong is in [`GpuError`]: every call ends with a value or one of its variants, also
//! when the worker is killed in the middle. After that, buffers keep their contents; one that was
//! being written is *tainted* and answers [`GpuError::GpuRefStale`] until it is overwritten whole.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | operation | a plain struct of parameters, carried out on buffers ([`Operation`]) |
//! | front, back | the application's side; the executor's side |
//! | executor | what carries operations out: host or CUDA |
//! | worker | the process (or thread) that the executor lives in |
//! | spare | a second worker that stands by |
//! | segment | a large piece of memory whose descriptor the front holds |
//! | buffer | a range of a segment: [`GpuRef`] on the device, [`HostBuf`] on the host |
//! | ticket | the place where an operation's outcome appears; callers see a [`Pending`] |
//! | generation | the number of the compute side's incarnation |
//! | taint | undefined contents, because a writer did not finish |
//!
//! # Map
//!
//! `device` (front: handle, actors, queues, reactor) knows `completion` (tickets), `memory`
//! (segments, buffers), `worker` (ring, process, wire format), which know `operation` (the
//! contract), `dtype` and `error`. `executor` (the back) knows no actor. `registry` is where
//! libraries announce themselves.

mod completion;
mod device;
mod dtype;
mod error;
pub mod executor;
pub mod graph;
mod memory;
mod operation;
pub mod registry;
pub mod worker;

pub use completion::{CompletionStrategy, Latency, Pending};
pub use device::*;
pub use dtype::{Complex, CudaDtype, DType, F8E4M3, F8E5M2, bf16, f16};
pub use error::{GpuError, IoError, Result, StaleReason};
pub use executor::ExecutorKind;
pub use executor::cuda::cuda_available;
pub use graph::{Graph, Recording};
pub use memory::{Blob, GpuRef, HostBuf, View};
pub use operation::{
    Access, Argument, Arguments, BufferShape, EnabledLibraries, Lane, LibraryId, MAX_REPLY_BYTES, Operation,
    checked_product, reply_value, strided_extent,
};
#[cfg(feature = "fault")]
pub use worker::fault::{Fault, FaultOp};
