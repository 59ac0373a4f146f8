//! Matrix products.

use atomr_cuda_core::{
    Access, Argument, Arguments, BufferShape, Call, DType, GpuError, LibraryId, Operation, Result, checked_product,
    strided_extent,
};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{FLOATS, LIBRARY, Layout, MathMode, check_dtypes, check_output_len, check_positive};

/// `C = alpha op(A) op(B) + beta C`, once or for each problem of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    /// Rows of `op(A)` and C.
    pub m: u64,
    /// Columns of `op(B)` and C.
    pub n: u64,
    /// Columns of `op(A)`, rows of `op(B)`.
    pub k: u64,
    /// How all three matrices lie in memory.
    pub layout: Layout,
    /// Whether A is stored as k x m.
    pub transpose_a: bool,
    /// Whether B is stored as n x k.
    pub transpose_b: bool,
    /// Leading dimension of A as stored; dense when `None`.
    pub ld_a: Option<u64>,
    /// Leading dimension of B as stored; dense when `None`.
    pub ld_b: Option<u64>,
    /// Leading dimension of C; dense when `None`.
    pub ld_c: Option<u64>,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of the old C; with 0 it is not read.
    pub beta: f64,
    /// How products are computed.
    pub math: MathMode,
    /// The batch; `None` for one problem.
    pub batch: Option<Batch>,
    /// Elements of the buffer of C, which tells whether C is overwritten whole.
    pub c_len: u64,
}

/// Equal problems at equal distances, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Problems.
    pub count: u64,
    /// From one A to the next; 0 uses one A for all.
    pub stride_a: u64,
    /// From one B to the next; 0 uses one B for all.
    pub stride_b: u64,
    /// From one C to the next.
    pub stride_c: u64,
}

/// A matrix as it lies in memory: `count` contiguous vectors of `inner` elements, `ld` apart, and
/// `stride` to the next problem's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub count: u64,
    pub inner: u64,
    pub ld: u64,
    pub stride: u64,
}

impl Gemm {
    /// A row-major dense product that overwrites a C buffer of `c_len` elements; the shape is to be given.
    pub fn new(c_len: u64) -> Self {
        Gemm {
            m: 0,
            n: 0,
            k: 0,
            layout: Layout::RowMajor,
            transpose_a: false,
            transpose_b: false,
            ld_a: None,
            ld_b: None,
            ld_c: None,
            alpha: 1.0,
            beta: 0.0,
            math: MathMode::Default,
            batch: None,
            c_len,
        }
    }

    /// Problems to compute.
    pub(crate) fn problems(&self) -> u64 {
        self.batch.map_or(1, |batch| batch.count)
    }

    pub(crate) fn a(&self) -> Operand {
        let (rows, columns) = if self.transpose_a { (self.k, self.m) } else { (self.m, self.k) };
        Operand::new(self.layout, rows, columns, self.ld_a, self.batch.map_or(0, |batch| batch.stride_a))
    }

    pub(crate) fn b(&self) -> Operand {
        let (rows, columns) = if self.transpose_b { (self.n, self.k) } else { (self.k, self.n) };
        Operand::new(self.layout, rows, columns, self.ld_b, self.batch.map_or(0, |batch| batch.stride_b))
    }

    pub(crate) fn c(&self) -> Operand {
        Operand::new(self.layout, self.m, self.n, self.ld_c, self.batch.map_or(0, |batch| batch.stride_c))
    }

    fn overwrites_c(&self) -> bool {
        let c = self.c();
        let dense = c.ld == c.inner && (self.problems() == 1 || Some(c.stride) == c.count.checked_mul(c.inner));
        let covered = checked_product(Self::NAME, "c", &[c.count, c.inner, self.problems()]);
        self.beta == 0.0 && dense && covered.is_ok_and(|elements| elements == self.c_len)
    }
}

impl Operation for Gemm {
    type Output = ();
    const NAME: &'static str = "cublas.gemm";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 1;

    fn arguments(&self) -> Arguments {
        let access = if self.overwrites_c() { Access::Write } else { Access::ReadWrite };
        smallvec![Argument::read("a"), Argument::read("b"), Argument { name: "c", access }]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let dtype = check_dtypes(Self::NAME, buffers, FLOATS)?;
        for (size, name) in [(self.m, "m"), (self.n, "n"), (self.k, "k")] {
            check_positive(Self::NAME, "shape", size, name)?;
        }
        if self.batch.is_some() {
            check_positive(Self::NAME, "batch", self.problems(), "the number of problems")?;
        }
        if matches!(self.math, MathMode::Tf32 | MathMode::Bf16x9) && dtype != DType::F32 {
            return Err(GpuError::invalid(Self::NAME, "math", format!("{:?} is for f32, not {dtype}", self.math)));
        }
        for (operand, buffer) in [self.a(), self.b(), self.c()].into_iter().zip(buffers) {
            operand.check(Self::NAME, buffer.name)?;
            buffer.expect_len(Self::NAME, operand.extent(Self::NAME, buffer.name, self.problems())?)?;
        }
        if self.problems() > 1 && !self.c().is_disjoint(self.problems()) {
            let reason = format!("problems of the batch overlap in C: stride_c is {}", self.c().stride);
            return Err(GpuError::invalid(Self::NAME, "batch", reason));
        }
        buffers.get(2).map_or(Ok(()), |c| check_output_len(Self::NAME, c, self.c_len))
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Operand {
    pub(crate) fn new(layout: Layout, rows: u64, columns: u64, ld: Option<u64>, stride: u64) -> Self {
        let (count, inner) = match layout {
            Layout::RowMajor => (rows, columns),
            Layout::ColumnMajor => (columns, rows),
        };
        Operand { count, inner, ld: ld.unwrap_or(inner), stride }
    }

    /// Requires that vectors do not overlap and that the sizes do not overflow.
    pub(crate) fn check(&self, operation: &str, argument: &str) -> Result<()> {
        checked_product(operation, argument, &[self.count, self.inner])?;
        check_positive(operation, argument, self.ld, "the leading dimension")?;
        if self.ld < self.inner {
            let reason =
                format!("the leading dimension is {}, less than the {} of a dense matrix", self.ld, self.inner);
            return Err(GpuError::invalid(operation, argument, reason));
        }
        if i64::try_from(self.stride).is_err() {
            return Err(GpuError::invalid(operation, argument, format!("the batch stride is {}", self.stride)));
        }
        Ok(())
    }

    /// Elements from the first to behind the last one of `problems` matrices.
    pub(crate) fn extent(&self, operation: &str, argument: &str, problems: u64) -> Result<u64> {
        let one = strided_extent(operation, argument, self.count, self.ld, self.inner)?;
        strided_extent(operation, argument, problems, self.stride, one)
    }

    /// Whether the matrices of a batch lie behind each other, or side by side within `ld`.
    fn is_disjoint(&self, problems: u64) -> bool {
        let fits = |outer: u64, count: u64, stride: u64, inner: u64| {
            (count - 1).checked_mul(stride).and_then(|n| n.checked_add(inner)).is_some_and(|extent| extent <= outer)
        };
        let behind = fits(self.stride, self.count, self.ld, self.inner);
        let beside = self.stride >= self.inner && fits(self.ld, problems, self.stride, self.inner);
        behind || beside
    }
}

/// The options of a [`Gemm`] call.
pub trait GemmOptions: Sized {
    /// `op(A)` is m x k, `op(B)` k x n, C m x n. Must be given; zero is refused.
    fn shape(self, m: usize, n: usize, k: usize) -> Self;
    /// How all three matrices lie in memory; row-major by default.
    fn layout(self, layout: Layout) -> Self;
    /// A is stored as k x m.
    fn transpose_a(self) -> Self;
    /// B is stored as n x k.
    fn transpose_b(self) -> Self;
    /// Elements between the rows (row-major) or columns of A as stored.
    fn ld_a(self, ld: usize) -> Self;
    /// Elements between the rows (row-major) or columns of B as stored.
    fn ld_b(self, ld: usize) -> Self;
    /// Elements between the rows (row-major) or columns of C.
    fn ld_c(self, ld: usize) -> Self;
    /// Factor of the product; 1 by default.
    fn alpha(self, alpha: f64) -> Self;
    /// Factor of the old C; 0 by default, and then C is not read.
    fn beta(self, beta: f64) -> Self;
    /// How products are computed.
    fn math(self, math: MathMode) -> Self;
    /// `count` problems, the distances between which are given in elements. Strides of A and B may
    /// be 0; the Cs must not overlap.
    fn batch(self, count: usize, stride_a: usize, stride_b: usize, stride_c: usize) -> Self;
}

impl GemmOptions for Call<Gemm> {
    fn shape(self, m: usize, n: usize, k: usize) -> Self {
        self.map(|op| Gemm { m: m as u64, n: n as u64, k: k as u64, ..op })
    }

    fn layout(self, layout: Layout) -> Self {
        self.map(|op| Gemm { layout, ..op })
    }

    fn transpose_a(self) -> Self {
        self.map(|op| Gemm { transpose_a: true, ..op })
    }

    fn transpose_b(self) -> Self {
        self.map(|op| Gemm { transpose_b: true, ..op })
    }

    fn ld_a(self, ld: usize) -> Self {
        self.map(|op| Gemm { ld_a: Some(ld as u64), ..op })
    }

    fn ld_b(self, ld: usize) -> Self {
        self.map(|op| Gemm { ld_b: Some(ld as u64), ..op })
    }

    fn ld_c(self, ld: usize) -> Self {
        self.map(|op| Gemm { ld_c: Some(ld as u64), ..op })
    }

    fn alpha(self, alpha: f64) -> Self {
        self.map(|op| Gemm { alpha, ..op })
    }

    fn beta(self, beta: f64) -> Self {
        self.map(|op| Gemm { beta, ..op })
    }

    fn math(self, math: MathMode) -> Self {
        self.map(|op| Gemm { math, ..op })
    }

    fn batch(self, count: usize, stride_a: usize, stride_b: usize, stride_c: usize) -> Self {
        let batch = Batch {
            count: count as u64,
            stride_a: stride_a as u64,
            stride_b: stride_b as u64,
            stride_c: stride_c as u64,
        };
        self.map(|op| Gemm { batch: Some(batch), ..op })
    }
}
