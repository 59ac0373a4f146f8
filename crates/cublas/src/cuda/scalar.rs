//! Types, sizes and factors as cuBLAS takes them.

use std::ffi::c_void;

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{DType, GpuError, Result};
use cudarc::cublas::sys::{cublasComputeType_t, cudaDataType};

use crate::op::MathMode;

/// A factor in host memory, in the type that cuBLAS computes with.
pub(super) struct Scalar {
    single: f32,
    double: f64,
    is_double: bool,
}

impl Scalar {
    /// The factor for buffers of `dtype`: `f64` for `f64`, else `f32`.
    pub fn new(value: f64, dtype: DType) -> Self {
        Scalar { single: value as f32, double: value, is_double: dtype == DType::F64 }
    }

    /// Its address. cuBLAS reads it before the call that it is given to returns.
    pub fn as_ptr(&self) -> *const c_void {
        if self.is_double { (&raw const self.double).cast() } else { (&raw const self.single).cast() }
    }
}

/// The element type's number.
pub(super) fn data_type(operation: &str, dtype: DType) -> Result<cudaDataType> {
    match dtype {
        DType::F16 => Ok(cudaDataType::CUDA_R_16F),
        DType::BF16 => Ok(cudaDataType::CUDA_R_16BF),
        DType::F32 => Ok(cudaDataType::CUDA_R_32F),
        DType::F64 => Ok(cudaDataType::CUDA_R_64F),
        _ => {
            let supported = "f16, bf16, f32, f64".into();
            Err(GpuError::DTypeUnsupported { operation: operation.into(), dtype, supported })
        }
    }
}

/// The type in which sums are kept.
pub(super) fn sum_type(dtype: DType) -> cudaDataType {
    if dtype == DType::F64 { cudaDataType::CUDA_R_64F } else { cudaDataType::CUDA_R_32F }
}

/// How a product is computed.
pub(super) fn compute_type(math: MathMode, dtype: DType) -> cublasComputeType_t {
    use cublasComputeType_t::*;
    match (math, dtype) {
        (MathMode::Pedantic, DType::F64) => CUBLAS_COMPUTE_64F_PEDANTIC,
        (_, DType::F64) => CUBLAS_COMPUTE_64F,
        (MathMode::Pedantic, _) => CUBLAS_COMPUTE_32F_PEDANTIC,
        (MathMode::Tf32, DType::F32) => CUBLAS_COMPUTE_32F_FAST_TF32,
        (MathMode::Bf16x9, DType::F32) => CUBLAS_COMPUTE_32F_EMULATED_16BFX9,
        _ => CUBLAS_COMPUTE_32F,
    }
}

/// A size for the 64-bit interface.
pub(super) fn size(operation: &str, argument: &str, value: u64) -> Result<i64> {
    i64::try_from(value)
        .map_err(|_| GpuError::invalid(operation, argument, format!("{value} is more than {}", i64::MAX)))
}

/// Buffer `index`, to be read.
pub(super) fn source<T>(call: &CudaCall<'_>, index: usize) -> Result<*const T> {
    Ok(call.ptr(index)? as *const T)
}

/// Buffer `index`, to be written.
pub(super) fn target<T>(call: &CudaCall<'_>, index: usize) -> Result<*mut T> {
    Ok(call.ptr(index)? as *mut T)
}
