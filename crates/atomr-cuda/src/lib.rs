#![doc = include_str!("../../../README.md")]
#![forbid(unsafe_code)]

pub use atomr_cuda_core::*;

/// Dense linear algebra: cuBLAS.
#[cfg(feature = "cublas")]
pub use atomr_cuda_cublas as cublas;

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
}
