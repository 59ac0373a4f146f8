//! Matrix products. cuBLAS knows column-major matrices only; a row-major product is computed as its
//! transpose, `C^T = op(B)^T op(A)^T`, which costs nothing but exchanging the operands.

use std::ffi::c_void;

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{DType, Operation, Result};
use cudarc::cublas::sys::{self, cublasGemmAlgo_t, cublasOperation_t};

use crate::op::{Gemm, Gemv, Layout, MathMode, Operand};

use super::handle::{Handle, check};
use super::scalar::{Scalar, compute_type, data_type, size, source, target};

/// A column-major matrix as cuBLAS takes it.
struct Input {
    ptr: *const c_void,
    operation: cublasOperation_t,
    ld: i64,
    stride: i64,
}

/// A column-major product as cuBLAS takes it.
struct Product {
    name: &'static str,
    dtype: DType,
    math: MathMode,
    /// m, n and k.
    shape: [i64; 3],
    a: Input,
    b: Input,
    c: *mut c_void,
    ld_c: i64,
    stride_c: i64,
    problems: i64,
    alpha: f64,
    beta: f64,
}

pub(super) fn gemm(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Gemm = call.params()?;
    let name = Gemm::NAME;
    let input = |index, operand: Operand, transpose, argument| -> Result<Input> {
        let ld = size(name, argument, operand.ld)?;
        let stride = size(name, argument, operand.stride)?;
        Ok(Input { ptr: source(call, index)?, operation: operation(transpose), ld, stride })
    };
    let a = input(0, op.a(), op.transpose_a, "a")?;
    let b = input(1, op.b(), op.transpose_b, "b")?;
    let (m, n, k) = (size(name, "shape", op.m)?, size(name, "shape", op.n)?, size(name, "shape", op.k)?);
    let (a, b, shape) = match op.layout {
        Layout::ColumnMajor => (a, b, [m, n, k]),
        Layout::RowMajor => (b, a, [n, m, k]),
    };
    let product = Product {
        name,
        dtype: call.dtype(2)?,
        math: op.math,
        shape,
        a,
        b,
        c: target(call, 2)?,
        ld_c: size(name, "c", op.c().ld)?,
        stride_c: size(name, "c", op.c().stride)?,
        problems: size(name, "batch", op.problems())?,
        alpha: op.alpha,
        beta: op.beta,
    };
    multiply(handle, &product)
}

pub(super) fn gemv(handle: &mut Handle, call: &CudaCall<'_>) -> Result<()> {
    let op: Gemv = call.params()?;
    let name = Gemv::NAME;
    let dtype = call.dtype(0)?;
    let ld = size(name, "a", op.a().ld)?;
    let (inc_x, inc_y) = (size(name, "x", op.inc_x)?, size(name, "y", op.inc_y)?);
    // A as cuBLAS sees it: column-major, the transpose of a row-major one.
    let transpose = op.transpose != (op.layout == Layout::RowMajor);
    if matches!(dtype, DType::F32 | DType::F64) {
        let (rows, columns) = (size(name, "a", op.a().inner)?, size(name, "a", op.a().count)?);
        let (alpha, beta) = (Scalar::new(op.alpha, dtype), Scalar::new(op.beta, dtype));
        let raw = handle.scalars_from_host()?;
        let trans = operation(transpose);
        // SAFETY: the handle is live and takes scalars from the host, where `alpha` and `beta` are
        // in the buffers' type; the front checked that matrix and vectors lie in their buffers.
        let status = unsafe {
            if dtype == DType::F64 {
                let (a, x, y) = (source(call, 0)?, source(call, 1)?, target(call, 2)?);
                let (alpha, beta) = (alpha.as_ptr().cast(), beta.as_ptr().cast());
                sys::cublasDgemv_v2_64(raw, trans, rows, columns, alpha, a, ld, x, inc_x, beta, y, inc_y)
            } else {
                let (a, x, y) = (source(call, 0)?, source(call, 1)?, target(call, 2)?);
                let (alpha, beta) = (alpha.as_ptr().cast(), beta.as_ptr().cast());
                sys::cublasSgemv_v2_64(raw, trans, rows, columns, alpha, a, ld, x, inc_x, beta, y, inc_y)
            }
        };
        return check("cublasSgemv_v2_64 or cublasDgemv_v2_64", status);
    }
    // Half types: y^T = x^T op(A)^T, where rows of one element carry the increments.
    let product = Product {
        name,
        dtype,
        math: MathMode::Default,
        shape: [1, size(name, "y", op.y_count())?, size(name, "x", op.x_count())?],
        a: Input { ptr: source(call, 1)?, operation: operation(false), ld: inc_x, stride: 0 },
        b: Input { ptr: source(call, 0)?, operation: operation(!transpose), ld, stride: 0 },
        c: target(call, 2)?,
        ld_c: inc_y,
        stride_c: 0,
        problems: 1,
        alpha: op.alpha,
        beta: op.beta,
    };
    multiply(handle, &product)
}

fn multiply(handle: &mut Handle, product: &Product) -> Result<()> {
    let raw = handle.scalars_from_host()?;
    let Product { shape: [m, n, k], a, b, .. } = product;
    let (alpha, beta) = (Scalar::new(product.alpha, product.dtype), Scalar::new(product.beta, product.dtype));
    let kind = data_type(product.name, product.dtype)?;
    let compute = compute_type(product.math, product.dtype);
    let algorithm = cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
    if product.problems == 1 {
        // SAFETY: the handle is live and takes scalars from the host, where `alpha` and `beta` are
        // in the compute type; the front checked that the matrices lie in their buffers.
        let status = unsafe {
            sys::cublasGemmEx_64(
                raw,
                a.operation,
                b.operation,
                *m,
                *n,
                *k,
                alpha.as_ptr(),
                a.ptr,
                kind,
                a.ld,
                b.ptr,
                kind,
                b.ld,
                beta.as_ptr(),
                product.c,
                kind,
                product.ld_c,
                compute,
                algorithm,
            )
        };
        return check("cublasGemmEx_64", status);
    }
    // SAFETY: as above; the front checked the last problem's matrices too, and that those of C do
    // not overlap.
    let status = unsafe {
        sys::cublasGemmStridedBatchedEx_64(
            raw,
            a.operation,
            b.operation,
            *m,
            *n,
            *k,
            alpha.as_ptr(),
            a.ptr,
            kind,
            a.ld,
            a.stride,
            b.ptr,
            kind,
            b.ld,
            b.stride,
            beta.as_ptr(),
            product.c,
            kind,
            product.ld_c,
            product.stride_c,
            product.problems,
            compute,
            algorithm,
        )
    };
    check("cublasGemmStridedBatchedEx_64", status)
}

fn operation(transpose: bool) -> cublasOperation_t {
    if transpose { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
}
