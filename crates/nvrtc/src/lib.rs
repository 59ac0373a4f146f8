//! NVRTC for `atomr-cuda`: CUDA C++ compiled at run time and launched on a supervised device.
//!
//! # What
//!
//! Linking this crate gives every [`Device`](atomr_cuda_core::Device) the methods of [`Nvrtc`]:
//! [`compile`](Nvrtc::compile) makes a [`Program`] of a [`Source`], [`launch`](Nvrtc::launch) runs one
//! of its kernels in order with all other operations, [`occupancy`](Nvrtc::occupancy) says how full
//! it makes the device. Programs outlive the worker. The same can be sent to the library's actor as
//! [`NvrtcMsg`]. The compiler alone, which needs no GPU, is in [`compiler`].
//!
//! ```
//! use atomr_core::actor::ActorSystem;
//! use atomr_cuda_core::{Device, DeviceConfig, EnabledLibraries, GpuError};
//! use atomr_cuda_nvrtc::{LaunchOptions, Nvrtc, Source};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let source = Source::new("saxpy.cu", r#"
//!     extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
//!         int i = blockIdx.x * blockDim.x + threadIdx.x;
//!         if (i < n) y[i] += a * x[i];
//!     }
//! "#);
//! let system = ActorSystem::create("doc", Default::default()).await?;
//! let config = DeviceConfig::auto().libraries(EnabledLibraries::NVRTC);
//! let device = Device::open(&system, config).await?;
//!
//! match device.compile(&source).await {
//!     Ok(program) => {
//!         let saxpy = program.kernel("saxpy")?;
//!         let x = device.upload(&vec![1.0f32; 1000]).await?;
//!         let y = device.upload(&vec![2.0f32; 1000]).await?;
//!         device
//!             .launch(&saxpy)
//!             .scalar(3.0f32)
//!             .read(&x)
//!             .read_write(&y)
//!             .scalar(1000i32)
//!             .grid(4)
//!             .block(256)
//!             .await?;
//!         assert_eq!(device.download(&y).await?, vec![5.0; 1000]);
//!     }
//!     // CUDA C++ runs on a GPU only.
//!     Err(GpuError::Unsupported { executor, .. }) => assert_eq!(executor, "host"),
//!     // The host device of a machine without NVRTC, or the other way round.
//!     Err(error) => println!("{error}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What can go wrong
//!
//! Compiling: [`Compile`](atomr_cuda_core::GpuError::Compile) with the source's name, the line of the
//! first error and the compiler's log; [`InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument)
//! for empty sources, NUL bytes, unknown options, folders that do not exist;
//! [`LibraryMissing`](atomr_cuda_core::GpuError::LibraryMissing) without NVRTC or without the
//! toolkit's headers, where they are asked for.
//!
//! Launching, before anything is queued: `InvalidArgument` for the wrong number of arguments, an
//! argument of the wrong size, a grid, block, cluster or shared memory that the kernel or the device
//! cannot have; [`Aliased`](atomr_cuda_core::GpuError::Aliased) for a written buffer that overlaps
//! another; [`GpuRefStale`](atomr_cuda_core::GpuError::GpuRefStale). Only sizes of arguments are
//! known, not their types: a `float` given as `i32` is not noticed.
//!
//! While it runs: a kernel that writes to a bad address ends its worker. The launch, and what was in
//! flight with it, fails with [`ContextPoisoned`](atomr_cuda_core::GpuError::ContextPoisoned); the
//! next launch runs on the next worker. A kernel that writes beyond its buffers but inside the
//! device's memory damages other buffers, as in any CUDA program. Nothing but a
//! [`deadline`](atomr_cuda_core::Call::deadline) ends a kernel that never ends.
//!
//! On a host device every operation answers
//! [`Unsupported`](atomr_cuda_core::GpuError::Unsupported).

mod actor;
pub mod compiler;
mod cuda;
mod host;
mod op;

use atomr_cuda_core::registry::{LibraryEntry, inventory};

pub use actor::{NvrtcActor, NvrtcMsg};
pub use compiler::{Architecture, KernelAttributes, LaunchConfig, Resources, Source};
pub use op::{
    Compile, DeviceLimits, Dim, KernelFn, KernelInfo, LIBRARY, Launch, LaunchOptions, Nvrtc, Occupancy, OccupancyQuery,
    Program,
};

/// The call traits: what `use atomr_cuda::prelude::*` brings from this crate.
pub mod prelude {
    pub use crate::compiler::Source;
    pub use crate::op::{KernelFn, LaunchOptions, Nvrtc, Program};
}

inventory::submit! {
    LibraryEntry {
        id: LIBRARY,
        name: cuda::nvrtc::NAME,
        operations: op::OPERATIONS,
        spawn: actor::spawn,
        host: Some(host::new),
        cuda: Some(cuda::new),
    }
}
