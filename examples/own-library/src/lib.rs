//! Row-wise softmax and cross-entropy for `atomr-cuda`: a library of one's own, with kernels of its
//! own. `docs/adding-a-library.md` walks through it file by file.
//!
//! # What
//!
//! Linking this crate and enabling [`ROWWISE`] gives every [`Device`](atomr_cuda_core::Device) the
//! methods of [`Rowwise`], on an NVIDIA GPU and on the CPU.
//!
//! ```
//! use atomr_core::actor::ActorSystem;
//! use atomr_cuda_core::{Device, DeviceConfig};
//! use own_library::{ROWWISE, Rowwise, RowwiseOptions};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let system = ActorSystem::create("doc", Default::default()).await?;
//! let device = Device::open(&system, DeviceConfig::host(0).libraries(ROWWISE)).await?;
//!
//! let x = device.upload(&[0.0f32, 0.0, 1000.0, 1000.0]).await?; // 2 x 2
//! let y = device.alloc::<f32>(4).await?;
//! let log_sums = device.alloc::<f32>(2).await?;
//! device.softmax(&x, &y, &log_sums).shape(2, 2).await?;
//! assert_eq!(device.download(&y).await?, [0.5; 4]);
//!
//! let labels = device.upload(&[0u32, 1]).await?;
//! let loss = device.cross_entropy(&x, &log_sums, &labels).shape(2, 2).await?;
//! assert!((loss - 2f64.ln()).abs() < 1e-4);
//! # Ok(())
//! # }
//! ```
//!
//! # What can go wrong
//!
//! Before anything is queued: [`InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) (a
//! shape that is missing or zero, an output that is too large),
//! [`ShapeMismatch`](atomr_cuda_core::GpuError::ShapeMismatch) (a buffer that is too small),
//! [`SizeOverflow`](atomr_cuda_core::GpuError::SizeOverflow),
//! [`DTypeMismatch`](atomr_cuda_core::GpuError::DTypeMismatch),
//! [`Aliased`](atomr_cuda_core::GpuError::Aliased). When a cross-entropy has finished,
//! `InvalidArgument` for labels that name no column. Without the shared library of NVRTC,
//! [`LibraryMissing`](atomr_cuda_core::GpuError::LibraryMissing) when the device starts.

mod actor;
mod cuda;
mod host;
mod op;

use atomr_cuda_core::registry::{LibraryEntry, inventory};

pub use actor::{RowwiseActor, RowwiseMsg};
pub use op::{CrossEntropy, LIBRARY, ROWWISE, Rowwise, RowwiseOptions, Softmax};

inventory::submit! {
    LibraryEntry {
        id: LIBRARY,
        name: "own-library",
        operations: op::OPERATIONS,
        spawn: actor::spawn,
        host: Some(host::new),
        cuda: Some(cuda::new),
    }
}
