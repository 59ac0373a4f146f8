//! Operations that make one value of vectors: products, norms, extremes.

use atomr_cuda_core::{
    Argument, Arguments, BufferShape, DType, GpuError, LibraryId, Operation, Result, bf16, f16, reply_value,
};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::vector::{PairOperation, VectorOperation, check_one, check_pair};
use super::{FLOATS, LIBRARY, SINGLE_DOUBLE};

/// The buffers' type must be the one in which the result will come back.
fn check_result_dtype(operation: &str, recorded: DType, found: DType) -> Result<()> {
    if recorded == found {
        return Ok(());
    }
    Err(GpuError::DTypeMismatch { operation: operation.into(), argument: "x".into(), expected: recorded, found })
}

/// A result that the executor wrote in the buffers' type.
fn read_scalar(operation: &str, dtype: DType, reply: &[u8]) -> Result<f64> {
    Ok(match dtype {
        DType::F16 => reply_value::<f16>(operation, reply)?.to_f64(),
        DType::BF16 => reply_value::<bf16>(operation, reply)?.to_f64(),
        DType::F32 => f64::from(reply_value::<f32>(operation, reply)?),
        _ => reply_value::<f64>(operation, reply)?,
    })
}

/// An index from 0; executors write it as cuBLAS does, from 1.
fn read_index(operation: &str, reply: &[u8]) -> Result<u64> {
    let index = reply_value::<i64>(operation, reply)?;
    u64::try_from(index - 1).map_err(|_| GpuError::Protocol {
        side: "worker".into(),
        reason: format!("{operation}: the index is {index}, counted from 1"),
    })
}

/// The sum of `x[i] y[i]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dot {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// Distance between elements of y.
    pub inc_y: u64,
    /// The buffers' type, in which the result is rounded.
    pub dtype: DType,
}

impl Operation for Dot {
    type Output = f64;
    const NAME: &'static str = "cublas.dot";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 4;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x"), Argument::read("y")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let found = check_pair(Self::NAME, buffers, FLOATS, self.n, [self.inc_x, self.inc_y])?;
        check_result_dtype(Self::NAME, self.dtype, found)
    }

    fn reply_bytes(&self) -> usize {
        self.dtype.size()
    }

    fn output(self, reply: &[u8]) -> Result<f64> {
        read_scalar(Self::NAME, self.dtype, reply)
    }
}

impl VectorOperation for Dot {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

impl PairOperation for Dot {
    fn inc_y_mut(&mut self) -> &mut u64 {
        &mut self.inc_y
    }
}

/// The Euclidean norm of x.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nrm2 {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// The buffers' type, in which the result is rounded.
    pub dtype: DType,
}

impl Operation for Nrm2 {
    type Output = f64;
    const NAME: &'static str = "cublas.nrm2";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 5;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let found = check_one(Self::NAME, buffers, FLOATS, self.n, self.inc_x)?;
        check_result_dtype(Self::NAME, self.dtype, found)
    }

    fn reply_bytes(&self) -> usize {
        self.dtype.size()
    }

    fn output(self, reply: &[u8]) -> Result<f64> {
        read_scalar(Self::NAME, self.dtype, reply)
    }
}

impl VectorOperation for Nrm2 {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

/// The sum of `|x[i]|`. `f32` and `f64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asum {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
    /// The buffers' type, in which the result is rounded.
    pub dtype: DType,
}

impl Operation for Asum {
    type Output = f64;
    const NAME: &'static str = "cublas.asum";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 6;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let found = check_one(Self::NAME, buffers, SINGLE_DOUBLE, self.n, self.inc_x)?;
        check_result_dtype(Self::NAME, self.dtype, found)
    }

    fn reply_bytes(&self) -> usize {
        self.dtype.size()
    }

    fn output(self, reply: &[u8]) -> Result<f64> {
        read_scalar(Self::NAME, self.dtype, reply)
    }
}

impl VectorOperation for Asum {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

/// The index, from 0, of the first element of largest `|x[i]|`. `f32` and `f64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amax {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
}

impl Operation for Amax {
    type Output = u64;
    const NAME: &'static str = "cublas.amax";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 10;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_one(Self::NAME, buffers, SINGLE_DOUBLE, self.n, self.inc_x)?;
        Ok(())
    }

    fn reply_bytes(&self) -> usize {
        size_of::<i64>()
    }

    fn output(self, reply: &[u8]) -> Result<u64> {
        read_index(Self::NAME, reply)
    }
}

impl VectorOperation for Amax {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}

/// The index, from 0, of the first element of smallest `|x[i]|`. `f32` and `f64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amin {
    /// Elements.
    pub n: u64,
    /// Distance between elements of x.
    pub inc_x: u64,
}

impl Operation for Amin {
    type Output = u64;
    const NAME: &'static str = "cublas.amin";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 11;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_one(Self::NAME, buffers, SINGLE_DOUBLE, self.n, self.inc_x)?;
        Ok(())
    }

    fn reply_bytes(&self) -> usize {
        size_of::<i64>()
    }

    fn output(self, reply: &[u8]) -> Result<u64> {
        read_index(Self::NAME, reply)
    }
}

impl VectorOperation for Amin {
    fn count_mut(&mut self) -> &mut u64 {
        &mut self.n
    }

    fn inc_x_mut(&mut self) -> &mut u64 {
        &mut self.inc_x
    }
}
