#![doc = include_str!("../../../README.md")]
#![forbid(unsafe_code)]

pub use atomr_cuda_core::*;

/// Dense linear algebra: cuBLAS.
#[cfg(feature = "cublas")]
pub use atomr_cuda_cublas as cublas;

/// Fourier transforms: cuFFT.
#[cfg(feature = "cufft")]
pub use atomr_cuda_cufft as cufft;

/// Exact attention with kernels of our own.
#[cfg(feature = "flashattn")]
pub use atomr_cuda_flashattn as flashattn;

/// CUDA C++ compiled at run time: NVRTC.
#[cfg(feature = "nvrtc")]
pub use atomr_cuda_nvrtc as nvrtc;

/// What most programs need: the device, its configuration, and every linked library's calls.
pub mod prelude {
    #[cfg(feature = "fault")]
    pub use atomr_cuda_core::Fault;
    pub use atomr_cuda_core::{
        Call, DType, Device, DeviceConfig, EnabledLibraries, ExecutorKind, GpuError, GpuRef, HostBuf, Isolation,
        Latency, Operation, RestartPolicy, SparePolicy,
    };

    #[cfg(feature = "cublas")]
    pub use atomr_cuda_cublas::prelude::*;
    #[cfg(feature = "cufft")]
    pub use atomr_cuda_cufft::prelude::*;
    #[cfg(feature = "flashattn")]
    pub use atomr_cuda_flashattn::prelude::*;
    #[cfg(feature = "nvrtc")]
    pub use atomr_cuda_nvrtc::prelude::*;
}
