//! Operations on vectors. Results go to the reply slot, which the GPU writes: no call waits.

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{DType, Operation, Result};
use cudarc::cublas::sys;

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Nrm2, Scal, Swap};

use super::handle::{Handle, check};
use super::scalar::{Scalar, data_type, size, source, sum_type, target};

pub(super) fn axpy(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Axpy = call.params()?;
    let dtype = call.dtype(0)?;
    let kind = data_type(Axpy::NAME, dtype)?;
    let [n, inc_x, inc_y] = sizes(Axpy::NAME, [op.n, op.inc_x, op.inc_y])?;
    let alpha = Scalar::new(op.alpha, dtype);
    let (x, y) = (source(call, 0)?, target(call, 1)?);
    let raw = handle.scalars_from_host()?;
    let sums = sum_type(dtype);
    // SAFETY: the handle is live and takes `alpha` from the host in the type that is named; the
    // front checked that both vectors lie in their buffers.
    check("cublasAxpyEx_64", unsafe {
        sys::cublasAxpyEx_64(raw, n, alpha.as_ptr(), sums, x, kind, inc_x, y, kind, inc_y, sums)
    })
}

pub(super) fn dot(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Dot = call.params()?;
    let dtype = call.dtype(0)?;
    let kind = data_type(Dot::NAME, dtype)?;
    let [n, inc_x, inc_y] = sizes(Dot::NAME, [op.n, op.inc_x, op.inc_y])?;
    let (x, y) = (source(call, 0)?, source(call, 1)?);
    let result = call.reply_ptr()? as *mut _;
    let raw = handle.results_to_device()?;
    // SAFETY: the handle is live and writes to a device address, which the reply slot is, of the
    // size of `kind`; the front checked that both vectors lie in their buffers.
    check("cublasDotEx_64", unsafe {
        sys::cublasDotEx_64(raw, n, x, kind, inc_x, y, kind, inc_y, result, kind, sum_type(dtype))
    })
}

pub(super) fn nrm2(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Nrm2 = call.params()?;
    let dtype = call.dtype(0)?;
    let kind = data_type(Nrm2::NAME, dtype)?;
    let [n, inc_x] = sizes(Nrm2::NAME, [op.n, op.inc_x])?;
    let x = source(call, 0)?;
    let result = call.reply_ptr()? as *mut _;
    let raw = handle.results_to_device()?;
    // SAFETY: the handle is live and writes to a device address, which the reply slot is, of the
    // size of `kind`; the front checked that the vector lies in its buffer.
    check("cublasNrm2Ex_64", unsafe { sys::cublasNrm2Ex_64(raw, n, x, kind, inc_x, result, kind, sum_type(dtype)) })
}

pub(super) fn scal(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Scal = call.params()?;
    let dtype = call.dtype(0)?;
    let kind = data_type(Scal::NAME, dtype)?;
    let [n, inc_x] = sizes(Scal::NAME, [op.n, op.inc_x])?;
    let alpha = Scalar::new(op.alpha, dtype);
    let x = target(call, 0)?;
    let raw = handle.scalars_from_host()?;
    let sums = sum_type(dtype);
    // SAFETY: the handle is live and takes `alpha` from the host in the type that is named; the
    // front checked that the vector lies in its buffer.
    check("cublasScalEx_64", unsafe { sys::cublasScalEx_64(raw, n, alpha.as_ptr(), sums, x, kind, inc_x, sums) })
}

/// Calls the routine of the buffers' type, `f32` or `f64`; the front has refused others.
macro_rules! single_or_double {
    ($call:expr, $single:ident, $double:ident, $($argument:expr),*) => {
        if $call.dtype(0)? == DType::F64 {
            // SAFETY: the handle is live, the buffers hold `f64`, results go to a device address,
            // which the reply slot is; the front checked that the vectors lie in their buffers.
            check(stringify!($double), unsafe { sys::$double($($argument),*) })
        } else {
            // SAFETY: as above, with `f32`.
            check(stringify!($single), unsafe { sys::$single($($argument),*) })
        }
    };
}

pub(super) fn asum(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Asum = call.params()?;
    let [n, inc_x] = sizes(Asum::NAME, [op.n, op.inc_x])?;
    let raw = handle.results_to_device()?;
    let result = call.reply_ptr()?;
    single_or_double!(call, cublasSasum_v2_64, cublasDasum_v2_64, raw, n, source(call, 0)?, inc_x, result as *mut _)
}

pub(super) fn copy(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Copy = call.params()?;
    let [n, inc_x, inc_y] = sizes(Copy::NAME, [op.n, op.inc_x, op.inc_y])?;
    let raw = handle.scalars_from_host()?;
    single_or_double!(
        call,
        cublasScopy_v2_64,
        cublasDcopy_v2_64,
        raw,
        n,
        source(call, 0)?,
        inc_x,
        target(call, 1)?,
        inc_y
    )
}

pub(super) fn swap(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Swap = call.params()?;
    let [n, inc_x, inc_y] = sizes(Swap::NAME, [op.n, op.inc_x, op.inc_y])?;
    let raw = handle.scalars_from_host()?;
    single_or_double!(
        call,
        cublasSswap_v2_64,
        cublasDswap_v2_64,
        raw,
        n,
        target(call, 0)?,
        inc_x,
        target(call, 1)?,
        inc_y
    )
}

pub(super) fn amax(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Amax = call.params()?;
    let [n, inc_x] = sizes(Amax::NAME, [op.n, op.inc_x])?;
    let raw = handle.results_to_device()?;
    let result = call.reply_ptr()? as *mut i64;
    single_or_double!(call, cublasIsamax_v2_64, cublasIdamax_v2_64, raw, n, source(call, 0)?, inc_x, result)
}

pub(super) fn amin(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Amin = call.params()?;
    let [n, inc_x] = sizes(Amin::NAME, [op.n, op.inc_x])?;
    let raw = handle.results_to_device()?;
    let result = call.reply_ptr()? as *mut i64;
    single_or_double!(call, cublasIsamin_v2_64, cublasIdamin_v2_64, raw, n, source(call, 0)?, inc_x, result)
}

/// Sizes for the 64-bit interface.
fn sizes<const N: usize>(operation: &str, values: [u64; N]) -> Result<[i64; N]> {
    let mut sizes = [0; N];
    for (to, value) in sizes.iter_mut().zip(values) {
        *to = size(operation, "x", value)?;
    }
    Ok(sizes)
}
