//! Operations on one or two vectors.
//!
//! Vectors have `n` elements, `inc_x` and `inc_y` apart; `n` is the length of x unless
//! [`count`](VectorOptions::count) says otherwise, increments are 1 unless given.

use atomr_cuda_core::{Access, Argument, Arguments, BufferShape, Call, DType, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{FLOATS, LIBRARY, SINGLE_DOUBLE, check_dtypes, check_output_len, check_vector};

/// An operation on a vector x.
pub trait VectorOperation: Operation {
    /// Elements.
    fn count_mut(&mut self) -> &mut u64;
    /// Distance between elements of x.
    fn inc_x_mut(&mut self) -> &mut u64;
}

/// An operation on two vectors, x and y.
pub trait PairOperation: VectorOperation {
    /// Distance between elements of y.
    fn inc_y_mut(&mut self) -> &mut u64;
}

/// The options of every vector operation.
pub trait VectorOptions: Sized {
    /// Uses the first `n` elements; the length of x by default.
    fn count(self, n: usize) -> Self;
    /// Distance between elements of x; 1 by default. Give [`count`](VectorOptions::count) with it.
    fn inc_x(self, increment: usize) -> Self;
}

/// The options of operations on two vectors.
pub trait PairOptions: Sized {
    /// Distance between elements of y; 1 by default. Give [`count`](VectorOptions::count) with it.
    fn inc_y(self, increment: usize) -> Self;
}

impl<O: VectorOperation> VectorOptions for Call<O> {
    fn count(mut self, n: usize) -> Self {
        *self.operation.count_mut() = n as u64;
        self
    }

    fn inc_x(mut self, increment: usize) -> Self {
        *self.operation.inc_x_mut() = increment as u64;
        self
    }
}

impl<O: PairOperation> PairOptions for Call<O> {
    fn inc_y(mut self, increment: usize) -> Self {
        *self.operation.inc_y_mut() = increment as u64;
        self
    }
}

/// The checks of an operation on one vector.
pub(super) fn check_one(
    operation: &str,
    buffers: &[BufferShape],
    supported: &[DType],
    n: u64,
    inc_x: u64,
) -> Result<DType> {
    let dtype = check_dtypes(operation, buffers, supported)?;
    buffers.first().map_or(Ok(()), |x| check_vector(operation, x, n, inc_x))?;
    Ok(dtype)
}

/// The checks of an operation on two vectors: x by `n` and `inc_x`, y by `n` and `inc_y`.
pub(super) fn check_pair(
    operation: &str,
    buffers: &[BufferShape],
    supported: &[DType],
    n: u64,
    inc: [u64; 2],
) -> Result<DType> {
    let dtype = check_dtypes(operation, buffers, supported)?;
    for (buffer, increment) in buffers.iter().zip(inc) {
        check_vector(operation, buffer, n, increment)?;
    }
    Ok(dtype)
}

/// `y = alpha x + y`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axpy {
    /// Elements.
    pub n: u64,
    /// Factor of x.
    pub alpha: f64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// Distance between elements of y.
    pub inc_y: u64,
}

impl Operation for Axpy {
    type Output = ();
    const NAME: &'static str = "cublas.axpy";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 3;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x"), Argument::read_write("y")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_pair(Self::NAME, buffers, FLOATS, self.n, [self.inc_x, self.inc_y])?;
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl VectorOperation for Axpy {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

impl PairOperation for Axpy {
    fn inc_y_mut(&mut self) -> &mut u64 {
        &mut self.inc_y
    }
}

/// `x = alpha x`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scal {
    /// Elements.
    pub n: u64,
    /// Factor of x.
    pub alpha: f64,
    /// Distance between elements of x.
    pub inc_x: u64,
}

impl Operation for Scal {
    type Output = ();
    const NAME: &'static str = "cublas.scal";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 7;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read_write("x")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_one(Self::NAME, buffers, FLOATS, self.n, self.inc_x)?;
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl VectorOperation for Scal {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

/// `y = x`. `f32` and `f64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Copy {
    /// Elements.
    pub n: u64,
    /// Elements of the buffer of y, which tells whether y is overwritten whole.
    pub y_len: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// Distance between elements of y.
    pub inc_y: u64,
}

impl Operation for Copy {
    type Output = ();
    const NAME: &'static str = "cublas.copy";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 8;

    fn arguments(&self) -> Arguments {
        let access = if self.inc_y == 1 && self.n == self.y_len { Access::Write } else { Access::ReadWrite };
        smallvec![Argument::read("x"), Argument { name: "y", access }]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_pair(Self::NAME, buffers, SINGLE_DOUBLE, self.n, [self.inc_x, self.inc_y])?;
        buffers.get(1).map_or(Ok(()), |y| check_output_len(Self::NAME, y, self.y_len))
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl VectorOperation for Copy {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

impl PairOperation for Copy {
    fn inc_y_mut(&mut self) -> &mut u64 {
        &mut self.inc_y
    }
}

/// Exchanges x and y. `f32` and `f64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Swap {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// Distance between elements of y.
    pub inc_y: u64,
}

impl Operation for Swap {
    type Output = ();
    const NAME: &'static str = "cublas.swap";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 9;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read_write("x"), Argument::read_write("y")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_pair(Self::NAME, buffers, SINGLE_DOUBLE, self.n, [self.inc_x, self.inc_y])?;
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl VectorOperation for Swap {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

impl PairOperation for Swap {
    fn inc_y_mut(&mut self) -> &mut u64 {
        &mut self.inc_y
    }
}
