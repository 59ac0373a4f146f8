//! The operations as data, their checks, and the calls that make them. No actor and no CUDA here.

mod gemm;
mod gemv;
mod reduce;
mod vector;

use atomr_cuda_core::{
    BufferShape, Call, CudaDtype, DType, Device, EnabledLibraries, GpuError, GpuRef, LibraryId, Operation, Result,
    strided_extent,
};
use serde::{Deserialize, Serialize};

pub use gemm::{Batch, Gemm, GemmOptions};
pub use gemv::{Gemv, GemvOptions};
pub use reduce::{Amax, Amin, Asum, Dot, Nrm2};
pub use vector::{Axpy, Copy, PairOperation, PairOptions, Scal, Swap, VectorOperation, VectorOptions};

pub(crate) use gemm::Operand;

/// The number of this library.
pub const LIBRARY: LibraryId = LibraryId::of(EnabledLibraries::BLAS);

pub(crate) const OPERATIONS: &[(u16, &str)] =
    &[Gemm::ID, Gemv::ID, Axpy::ID, Dot::ID, Nrm2::ID, Asum::ID, Scal::ID, Copy::ID, Swap::ID, Amax::ID, Amin::ID];

/// How a matrix lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Layout {
    /// Rows are contiguous, as in C and Rust; the leading dimension is the distance between rows.
    #[default]
    RowMajor,
    /// Columns are contiguous, as in Fortran; the leading dimension is the distance between columns.
    ColumnMajor,
}

/// How the products of a matrix multiplication are computed on the GPU.
///
/// The host executor computes in the buffers' type (half types: in `f32`), whichever is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MathMode {
    /// The buffers' own precision; half types accumulate in `f32`.
    #[default]
    Default,
    /// `f32` inputs rounded to TF32 (10 fraction bits) on the tensor cores. `f32` only.
    Tf32,
    /// `f32` emulated by nine BF16 products on the tensor cores: `f32` accuracy, faster where the
    /// GPU has the hardware for it, refused by cuBLAS where it has not. `f32` only.
    Bf16x9,
    /// No reordering that changes rounding, no tensor cores: for bit-level comparisons.
    Pedantic,
}

/// BLAS on a device. Every method makes a [`Call`](atomr_cuda_core::Call) that does nothing until
/// it is awaited, submitted or waited for.
///
/// Element types: `f32`, `f64`, `f16`, `bf16`, where a method does not name fewer. Another type is
/// a [`GpuError::DTypeUnsupported`] when the call is submitted. Scalars are given as `f64` and
/// rounded to `f32`, except for `f64` buffers.
pub trait Blas: sealed::Device {
    /// `C = alpha op(A) op(B) + beta C`, with `op(A)` m x k, `op(B)` k x n and C m x n.
    ///
    /// [`shape`](GemmOptions::shape) must be given. Defaults: row-major, not transposed, dense,
    /// `alpha` 1, `beta` 0. With `beta` 0 the old contents of C are not read. Maps to
    /// `cublasGemmEx`.
    fn gemm<T: CudaDtype>(&self, a: &GpuRef<T>, b: &GpuRef<T>, c: &GpuRef<T>) -> Call<Gemm>;

    /// As [`gemm`](Blas::gemm) for each problem of a batch; [`batch`](GemmOptions::batch) must be
    /// given too. Maps to `cublasGemmStridedBatchedEx`.
    fn gemm_strided_batched<T: CudaDtype>(&self, a: &GpuRef<T>, b: &GpuRef<T>, c: &GpuRef<T>) -> Call<Gemm>;

    /// `y = alpha op(A) x + beta y`, with A m x n; [`shape`](GemvOptions::shape) must be given.
    ///
    /// Maps to `cublasSgemv` and `cublasDgemv`, for half types to `cublasGemmEx`.
    fn gemv<T: CudaDtype>(&self, a: &GpuRef<T>, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Gemv>;

    /// `y = alpha x + y`. Maps to `cublasAxpyEx`.
    fn axpy<T: CudaDtype>(&self, alpha: f64, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Axpy>;

    /// The sum of `x[i] y[i]`, rounded to the buffers' type. Maps to `cublasDotEx`.
    fn dot<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Dot>;

    /// The Euclidean norm of x, rounded to the buffer's type. Maps to `cublasNrm2Ex`.
    fn nrm2<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Nrm2>;

    /// The sum of `|x[i]|`. `f32` and `f64`. Maps to `cublasSasum` and `cublasDasum`.
    fn asum<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Asum>;

    /// `x = alpha x`. Maps to `cublasScalEx`.
    fn scal<T: CudaDtype>(&self, alpha: f64, x: &GpuRef<T>) -> Call<Scal>;

    /// `y = x`, with increments. `f32` and `f64`. Maps to `cublasScopy` and `cublasDcopy`.
    fn copy_vector<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Copy>;

    /// Exchanges x and y. `f32` and `f64`. Maps to `cublasSswap` and `cublasDswap`.
    fn swap<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Swap>;

    /// The index, **from 0**, of the first element of largest `|x[i]|` (cuBLAS itself counts from
    /// 1). Unspecified where x holds NaN. `f32` and `f64`. Maps to `cublasIsamax` and `cublasIdamax`.
    fn amax<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Amax>;

    /// As [`amax`](Blas::amax) for the smallest `|x[i]|`. Maps to `cublasIsamin` and `cublasIdamin`.
    fn amin<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Amin>;
}

impl Blas for Device {
    fn gemm<T: CudaDtype>(&self, a: &GpuRef<T>, b: &GpuRef<T>, c: &GpuRef<T>) -> Call<Gemm> {
        Call::new(self, Gemm::new(c.view().len()), [a.view(), b.view(), c.view()])
    }

    fn gemm_strided_batched<T: CudaDtype>(&self, a: &GpuRef<T>, b: &GpuRef<T>, c: &GpuRef<T>) -> Call<Gemm> {
        self.gemm(a, b, c).batch(0, 0, 0, 0)
    }

    fn gemv<T: CudaDtype>(&self, a: &GpuRef<T>, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Gemv> {
        Call::new(self, Gemv::new(y.view().len()), [a.view(), x.view(), y.view()])
    }

    fn axpy<T: CudaDtype>(&self, alpha: f64, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Axpy> {
        Call::new(self, Axpy { n: x.view().len(), alpha, inc_x: 1, inc_y: 1 }, [x.view(), y.view()])
    }

    fn dot<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Dot> {
        let dot = Dot { n: x.view().len(), inc_x: 1, inc_y: 1, dtype: T::DTYPE };
        Call::new(self, dot, [x.view(), y.view()])
    }

    fn nrm2<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Nrm2> {
        Call::new(self, Nrm2 { n: x.view().len(), inc_x: 1, dtype: T::DTYPE }, [x.view()])
    }

    fn asum<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Asum> {
        Call::new(self, Asum { n: x.view().len(), inc_x: 1, dtype: T::DTYPE }, [x.view()])
    }

    fn scal<T: CudaDtype>(&self, alpha: f64, x: &GpuRef<T>) -> Call<Scal> {
        Call::new(self, Scal { n: x.view().len(), alpha, inc_x: 1 }, [x.view()])
    }

    fn copy_vector<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Copy> {
        let copy = Copy { n: x.view().len(), inc_x: 1, inc_y: 1, y_len: y.view().len() };
        Call::new(self, copy, [x.view(), y.view()])
    }

    fn swap<T: CudaDtype>(&self, x: &GpuRef<T>, y: &GpuRef<T>) -> Call<Swap> {
        Call::new(self, Swap { n: x.view().len(), inc_x: 1, inc_y: 1 }, [x.view(), y.view()])
    }

    fn amax<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Amax> {
        Call::new(self, Amax { n: x.view().len(), inc_x: 1 }, [x.view()])
    }

    fn amin<T: CudaDtype>(&self, x: &GpuRef<T>) -> Call<Amin> {
        Call::new(self, Amin { n: x.view().len(), inc_x: 1 }, [x.view()])
    }
}

mod sealed {
    pub trait Device {}
    impl Device for atomr_cuda_core::Device {}
}

/// The element types of most operations.
const FLOATS: &[DType] = &[DType::F16, DType::BF16, DType::F32, DType::F64];
/// The element types of the routines that cuBLAS has no half version of.
const SINGLE_DOUBLE: &[DType] = &[DType::F32, DType::F64];

/// All buffers must have the first one's type, and that one must be in `supported`.
fn check_dtypes(operation: &str, buffers: &[BufferShape], supported: &[DType]) -> Result<DType> {
    let Some(first) = buffers.first() else {
        return Err(GpuError::invalid(operation, "buffers", "none were given"));
    };
    if !supported.contains(&first.dtype) {
        let supported = supported.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
        return Err(GpuError::DTypeUnsupported { operation: operation.into(), dtype: first.dtype, supported });
    }
    for buffer in buffers {
        buffer.expect_dtype(operation, first.dtype)?;
    }
    Ok(first.dtype)
}

/// A size from 1 to `i64::MAX`, the range of the 64-bit interface of cuBLAS.
fn check_positive(operation: &str, argument: &str, value: u64, what: &str) -> Result<()> {
    if value == 0 {
        return Err(GpuError::invalid(
            operation,
            argument,
            format!("{what} is 0 or was not given; it must be 1 or more"),
        ));
    }
    if i64::try_from(value).is_err() {
        return Err(GpuError::invalid(operation, argument, format!("{what} is {value}, more than {}", i64::MAX)));
    }
    Ok(())
}

/// A vector of `n` elements, `increment` apart, must lie in `buffer`.
fn check_vector(operation: &str, buffer: &BufferShape, n: u64, increment: u64) -> Result<()> {
    check_positive(operation, buffer.name, n, "the number of elements")?;
    check_positive(operation, buffer.name, increment, "the increment")?;
    buffer.expect_len(operation, strided_extent(operation, buffer.name, n, increment, 1)?)
}

/// The recorded length of an output must be its buffer's: on it depends whether it is overwritten whole.
fn check_output_len(operation: &str, buffer: &BufferShape, recorded: u64) -> Result<()> {
    if recorded == buffer.len {
        return Ok(());
    }
    let reason = format!("the operation was made for {recorded} elements, the buffer has {}", buffer.len);
    Err(GpuError::invalid(operation, buffer.name, reason))
}
