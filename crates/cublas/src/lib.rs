//! cuBLAS for `atomr-cuda`: matrix products and vector operations on a supervised device.
//!
//! # What
//!
//! Linking this crate gives every [`Device`](atomr_cuda_core::Device) the methods of [`Blas`]. The
//! same calls run on an NVIDIA GPU (cuBLAS) and on the CPU (the `gemm` crate). The operations are
//! plain data ([`Gemm`], [`Axpy`], ...); they can also be sent to the library's actor as
//! [`BlasMsg`], found through [`KernelChildren`](atomr_cuda_core::KernelChildren) as
//! `ActorRef<BlasMsg>`.
//!
//! ```
//! use atomr_core::actor::ActorSystem;
//! use atomr_cuda_core::{Device, DeviceConfig};
//! use atomr_cuda_cublas::{Blas, GemmOptions};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let system = ActorSystem::create("doc", Default::default()).await?;
//! let device = Device::open(&system, DeviceConfig::host(0)).await?;
//!
//! let a = device.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).await?; // 2 x 3
//! let b = device.upload(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).await?; // 3 x 2
//! let c = device.alloc::<f32>(4).await?;
//! device.gemm(&a, &b, &c).shape(2, 2, 3).await?;
//! assert_eq!(device.download(&c).await?, [4.0, 5.0, 10.0, 11.0]);
//! assert_eq!(device.amax(&c).await?, 3);
//! # Ok(())
//! # }
//! ```
//!
//! # What can go wrong
//!
//! Before anything is queued: [`InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) (a
//! shape that is missing or zero, a leading dimension that is too small),
//! [`ShapeMismatch`](atomr_cuda_core::GpuError::ShapeMismatch) (a buffer that is too small),
//! [`SizeOverflow`](atomr_cuda_core::GpuError::SizeOverflow),
//! [`DTypeMismatch`](atomr_cuda_core::GpuError::DTypeMismatch) and
//! [`DTypeUnsupported`](atomr_cuda_core::GpuError::DTypeUnsupported),
//! [`Aliased`](atomr_cuda_core::GpuError::Aliased) (an output that overlaps an input). Without the
//! shared library, [`LibraryMissing`](atomr_cuda_core::GpuError::LibraryMissing) when the device
//! starts; afterwards [`Library`](atomr_cuda_core::GpuError::Library) with the status of cuBLAS.
//!
//! Results of the two executors agree within rounding, not bit by bit.

mod actor;
mod cuda;
mod host;
mod op;

use atomr_cuda_core::registry::{LibraryEntry, inventory};

pub use actor::{BlasActor, BlasMsg};
pub use op::{
    Amax, Amin, Asum, Axpy, Batch, Blas, Copy, Dot, Gemm, GemmOptions, Gemv, GemvOptions, LIBRARY, Layout, MathMode,
    Nrm2, PairOperation, PairOptions, Scal, Swap, VectorOperation, VectorOptions,
};

/// The call traits: what `use atomr_cuda::prelude::*` brings from this crate.
pub mod prelude {
    pub use crate::op::{Blas, Gemm, GemmOptions, GemvOptions, Layout, MathMode, PairOptions, VectorOptions};
}

inventory::submit! {
    LibraryEntry {
        id: LIBRARY,
        name: cuda::NAME,
        operations: op::OPERATIONS,
        spawn: actor::spawn,
        host: Some(host::new),
        cuda: Some(cuda::new),
    }
}
