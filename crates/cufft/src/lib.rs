//! cuFFT for atomr-cuda: Fourier transforms on supervised GPU devices.
//!
//! # What
//!
//! Linking this crate and enabling [`EnabledLibraries::CUFFT`](atomr_cuda_core::EnabledLibraries) gives
//! every [`Device`](atomr_cuda_core::Device) the methods of [`Fft`]: complex and real transforms in
//! one, two and three dimensions, batched, strided and embedded, in place and out of place, in f32, f64
//! and f16. On a GPU they are cuFFT's, whose plans are made on a side thread when first needed and
//! kept; on the CPU they are those of `rustfft` and `realfft`.
//!
//! ```
//! use atomr_core::actor::ActorSystem;
//! use atomr_cuda_core::{Complex, Device, DeviceConfig, EnabledLibraries};
//! use atomr_cuda_cufft::{Fft, FftOptions, Norm};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let system = ActorSystem::create("doc", Default::default()).await?;
//! let device = Device::open(&system, DeviceConfig::host(0).libraries(EnabledLibraries::CUFFT)).await?;
//!
//! let x = device.upload(&[0.0f32, 1.0, 0.0, -1.0]).await?; // one period of a sine
//! let spectrum = device.alloc::<Complex<f32>>(3).await?;
//! device.rfft(&x, &spectrum).shape(&[4]).await?;
//! assert_eq!(device.download(&spectrum).await?[1], Complex::new(0.0, -2.0));
//!
//! let y = device.alloc::<f32>(4).await?;
//! device.irfft(&spectrum, &y).shape(&[4]).norm(Norm::Backward).await?;
//! assert_eq!(device.download(&y).await?, [0.0, 1.0, 0.0, -1.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # What can go wrong
//!
//! Before anything is queued: [`InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) (a shape
//! that is missing, a length of zero, a layout whose elements lie over others, an output that is too
//! large, lengths in f16 that are not powers of two),
//! [`ShapeMismatch`](atomr_cuda_core::GpuError::ShapeMismatch) (a buffer that is too small),
//! [`SizeOverflow`](atomr_cuda_core::GpuError::SizeOverflow),
//! [`DTypeMismatch`](atomr_cuda_core::GpuError::DTypeMismatch),
//! [`Aliased`](atomr_cuda_core::GpuError::Aliased). Later, cuFFT's statuses as
//! [`Library`](atomr_cuda_core::GpuError::Library), and
//! [`OutOfMemory`](atomr_cuda_core::GpuError::OutOfMemory) where there is no room to work in. Without
//! the shared library, [`LibraryMissing`](atomr_cuda_core::GpuError::LibraryMissing).

mod actor;
mod cuda;
mod host;
mod op;

use atomr_cuda_core::registry::{LibraryEntry, inventory};

pub use actor::{FftActor, FftMsg};
pub use op::{ComplexElement, Embedding, Fft, FftOptions, Kind, LIBRARY, Lengths, Norm, Real, Transform};

/// The call traits: what `use atomr_cuda::prelude::*` brings from this crate.
pub mod prelude {
    pub use crate::op::{Fft, FftOptions, Norm};
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
