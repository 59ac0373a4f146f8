//! FlashAttention for atomr-cuda: exact attention with kernels of our own.
//!
//! # What
//!
//! Linking this crate and enabling [`EnabledLibraries::FLASHATTN`](atomr_cuda_core::EnabledLibraries)
//! gives every [`Device`](atomr_cuda_core::Device) the methods of [`AttentionCall`]: attention forward
//! (f16 and bf16; heads of 64, 128 and 256 elements; causal, sliding window, softcap, MQA and GQA,
//! packed sequences of different lengths, the logarithms of the sums) and attention of new tokens
//! against a paged cache.
//!
//! On a GPU the kernels are CUDA C++, compiled by NVRTC for the device that is there on first use and
//! kept in the NVRTC crate's cache on disk. There are two families: `mma.sync` with `cp.async` from
//! compute capability 8.0, and `wgmma` with TMA and warp specialisation for 9.0;
//! [`attention_plan`](AttentionCall::attention_plan) says which one an operation takes. On the CPU it
//! is exact attention in f32.
//!
//! ```
//! use atomr_core::actor::ActorSystem;
//! use atomr_cuda_core::{Device, DeviceConfig, EnabledLibraries, bf16};
//! use atomr_cuda_flashattn::{AttentionCall, AttentionOptions, MaskOptions};
//!
//! # #[tokio::main]
//! # async fn main() -> anyhow::Result<()> {
//! let system = ActorSystem::create("doc", Default::default()).await?;
//! let device = Device::open(&system, DeviceConfig::host(0).libraries(EnabledLibraries::FLASHATTN)).await?;
//!
//! // Two queries and two keys of one head: the first query sees only the first key.
//! let q = device.upload(&[bf16::ONE; 2 * 64]).await?;
//! let k = device.upload(&[bf16::ONE; 2 * 64]).await?;
//! let values: Vec<bf16> = (0..128).map(|i| bf16::from_f32(if i < 64 { 1.0 } else { 3.0 })).collect();
//! let v = device.upload(&values).await?;
//! let o = device.alloc::<bf16>(2 * 64).await?;
//! let lse = device.alloc::<f32>(2).await?;
//! device.attention(&q, &k, &v, &o).shape(1, 2, 2, 64).heads(1, 1).causal().lse(&lse).await?;
//!
//! let o = device.download(&o).await?;
//! assert_eq!((o[0].to_f32(), o[64].to_f32()), (1.0, 2.0)); // equal weights: the mean of 1 and 3
//! assert_eq!(device.download(&lse).await?[0], 8.0); // the one score: 64 / sqrt(64)
//! # Ok(())
//! # }
//! ```
//!
//! # What can go wrong
//!
//! Before anything is queued: [`InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) (a shape
//! that is missing, a head dimension without kernels, strides that are not multiples of 8 or lay
//! elements over others, an output that is too large),
//! [`ShapeMismatch`](atomr_cuda_core::GpuError::ShapeMismatch) (a buffer that is too small),
//! [`SizeOverflow`](atomr_cuda_core::GpuError::SizeOverflow),
//! [`DTypeMismatch`](atomr_cuda_core::GpuError::DTypeMismatch),
//! [`Aliased`](atomr_cuda_core::GpuError::Aliased). When an operation has finished, `InvalidArgument`
//! for lengths or page numbers on the device that do not fit, and for buffers whose slices do not
//! begin at a multiple of 16 bytes. [`Unsupported`](atomr_cuda_core::GpuError::Unsupported) for
//! [`Kernels::Wgmma`] on a device that is not of compute capability 9.0, and for devices before 8.0.
//! Without the shared library of NVRTC,
//! [`LibraryMissing`](atomr_cuda_core::GpuError::LibraryMissing) when the device starts.

mod actor;
mod cuda;
mod host;
mod op;

use atomr_cuda_core::registry::{LibraryEntry, inventory};

pub use actor::{AttentionActor, AttentionMsg};
pub use op::{
    Attention, AttentionCall, AttentionOptions, AttentionPlan, Decode, DecodeOptions, HEAD_DIMS, HalfElement, Kernels,
    LIBRARY, MAX_BATCH, MAX_SEQUENCE, MaskOptions, Packed, PlanQuery, Shape, Strides, Window,
};

/// The call traits: what `use atomr_cuda::prelude::*` brings from this crate.
pub mod prelude {
    pub use crate::op::{AttentionCall, AttentionOptions, DecodeOptions, Kernels, MaskOptions, Strides};
}

inventory::submit! {
    LibraryEntry {
        id: LIBRARY,
        name: "flashattn",
        operations: op::OPERATIONS,
        spawn: actor::spawn,
        host: Some(host::new),
        cuda: Some(cuda::new),
    }
}
