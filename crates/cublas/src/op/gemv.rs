//! Matrix times vector.

use atomr_cuda_core::{Access, Argument, Arguments, BufferShape, Call, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{FLOATS, LIBRARY, Layout, Operand, check_dtypes, check_output_len, check_positive, check_vector};

/// `y = alpha op(A) x + beta y`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gemv {
    /// Rows of A as stored.
    pub m: u64,
    /// Columns of A as stored.
    pub n: u64,
    /// How A lies in memory.
    pub layout: Layout,
    /// Whether `op(A)` is the transpose of A.
    pub transpose: bool,
    /// Leading dimension of A; dense when `None`.
    pub ld_a: Option<u64>,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// Distance between elements of y.
    pub inc_y: u64,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of the old y; with 0 it is not read.
    pub beta: f64,
    /// Elements of the buffer of y, which tells whether y is overwritten whole.
    pub y_len: u64,
}

impl Gemv {
    /// A row-major dense product that overwrites a y buffer of `y_len` elements; the shape is to be given.
    pub fn new(y_len: u64) -> Self {
        Gemv {
            m: 0,
            n: 0,
            layout: Layout::RowMajor,
            transpose: false,
            ld_a: None,
            inc_x: 1,
            inc_y: 1,
            alpha: 1.0,
            beta: 0.0,
            y_len,
        }
    }

    pub(crate) fn a(&self) -> Operand {
        Operand::new(self.layout, self.m, self.n, self.ld_a, 0)
    }

    /// Elements of x.
    pub(crate) fn x_count(&self) -> u64 {
        if self.transpose { self.m } else { self.n }
    }

    /// Elements of y that are written.
    pub(crate) fn y_count(&self) -> u64 {
        if self.transpose { self.n } else { self.m }
    }
}

impl Operation for Gemv {
    type Output = ();
    const NAME: &'static str = "cublas.gemv";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 2;

    fn arguments(&self) -> Arguments {
        let whole = self.beta == 0.0 && self.inc_y == 1 && self.y_count() == self.y_len;
        let access = if whole { Access::Write } else { Access::ReadWrite };
        smallvec![Argument::read("a"), Argument::read("x"), Argument { name: "y", access }]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_dtypes(Self::NAME, buffers, FLOATS)?;
        for (size, name) in [(self.m, "m"), (self.n, "n")] {
            check_positive(Self::NAME, "shape", size, name)?;
        }
        self.a().check(Self::NAME, "a")?;
        let [a, x, y] = buffers else { return Ok(()) };
        a.expect_len(Self::NAME, self.a().extent(Self::NAME, "a", 1)?)?;
        check_vector(Self::NAME, x, self.x_count(), self.inc_x)?;
        check_vector(Self::NAME, y, self.y_count(), self.inc_y)?;
        check_output_len(Self::NAME, y, self.y_len)
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// The options of a [`Gemv`] call.
pub trait GemvOptions: Sized {
    /// A is m x n as stored. Must be given; zero is refused.
    fn shape(self, m: usize, n: usize) -> Self;
    /// How A lies in memory; row-major by default.
    fn layout(self, layout: Layout) -> Self;
    /// Multiplies by the transpose of A: x has m elements, y has n.
    fn transpose(self) -> Self;
    /// Elements between the rows (row-major) or columns of A.
    fn ld_a(self, ld: usize) -> Self;
    /// Distance between elements of x; 1 by default.
    fn inc_x(self, increment: usize) -> Self;
    /// Distance between elements of y; 1 by default.
    fn inc_y(self, increment: usize) -> Self;
    /// Factor of the product; 1 by default.
    fn alpha(self, alpha: f64) -> Self;
    /// Factor of the old y; 0 by default, and then y is not read.
    fn beta(self, beta: f64) -> Self;
}

impl GemvOptions for Call<Gemv> {
    fn shape(self, m: usize, n: usize) -> Self {
        self.map(|op| Gemv { m: m as u64, n: n as u64, ..op })
    }

    fn layout(self, layout: Layout) -> Self {
        self.map(|op| Gemv { layout, ..op })
    }

    fn transpose(self) -> Self {
        self.map(|op| Gemv { transpose: true, ..op })
    }

    fn ld_a(self, ld: usize) -> Self {
        self.map(|op| Gemv { ld_a: Some(ld as u64), ..op })
    }

    fn inc_x(self, increment: usize) -> Self {
        self.map(|op| Gemv { inc_x: increment as u64, ..op })
    }

    fn inc_y(self, increment: usize) -> Self {
        self.map(|op| Gemv { inc_y: increment as u64, ..op })
    }

    fn alpha(self, alpha: f64) -> Self {
        self.map(|op| Gemv { alpha, ..op })
    }

    fn beta(self, beta: f64) -> Self {
        self.map(|op| Gemv { beta, ..op })
    }
}
