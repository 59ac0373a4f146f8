//! The operations as data, their checks, and the calls that make them. No actor and no CUDA here.

use atomr_cuda_core::{
    Argument, Arguments, BufferShape, Call, DType, Device, EnabledLibraries, GpuError, GpuRef, LibraryId, Operation,
    Result, checked_product, reply_value,
};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

/// The bit that an application enables.
pub const ROWWISE: EnabledLibraries = EnabledLibraries::custom(0);
/// The number of this library.
pub const LIBRARY: LibraryId = LibraryId::of(ROWWISE);

pub(crate) const OPERATIONS: &[(u16, &str)] = &[Softmax::ID, CrossEntropy::ID];

/// `y = exp(x) / sum(exp(x))` in each row, and the logarithm of each row's sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Softmax {
    /// Rows of x and y.
    pub rows: u64,
    /// Columns of x and y.
    pub columns: u64,
}

impl Operation for Softmax {
    type Output = ();
    const NAME: &'static str = "rowwise.softmax";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 1;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x"), Argument::write("y"), Argument::write("log_sums")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let elements = check_shape(Self::NAME, self.rows, self.columns)?;
        let [x, y, log_sums] = buffers else { return Ok(()) };
        for buffer in buffers {
            buffer.expect_dtype(Self::NAME, DType::F32)?;
        }
        x.expect_len(Self::NAME, elements)?;
        expect_whole(Self::NAME, y, elements)?;
        expect_whole(Self::NAME, log_sums, self.rows)
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// The mean over the rows of `log_sums[row] - x[row, labels[row]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// Rows of x.
    pub rows: u64,
    /// Columns of x; labels are less than this.
    pub columns: u64,
}

impl Operation for CrossEntropy {
    type Output = f64;
    const NAME: &'static str = "rowwise.cross_entropy";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 2;

    fn arguments(&self) -> Arguments {
        smallvec![Argument::read("x"), Argument::read("log_sums"), Argument::read("labels")]
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let elements = check_shape(Self::NAME, self.rows, self.columns)?;
        let [x, log_sums, labels] = buffers else { return Ok(()) };
        x.expect_dtype(Self::NAME, DType::F32)?;
        log_sums.expect_dtype(Self::NAME, DType::F32)?;
        labels.expect_dtype(Self::NAME, DType::U32)?;
        x.expect_len(Self::NAME, elements)?;
        log_sums.expect_len(Self::NAME, self.rows)?;
        labels.expect_len(Self::NAME, self.rows)
    }

    fn reply_bytes(&self) -> usize {
        size_of::<f64>() + size_of::<u64>()
    }

    /// The reply is the sum over the rows, then how many labels name no column.
    fn output(self, reply: &[u8]) -> Result<f64> {
        let sum: f64 = reply_value(Self::NAME, reply)?;
        let wrong: u64 = reply_value(Self::NAME, reply.get(size_of::<f64>()..).unwrap_or_default())?;
        if wrong > 0 {
            let reason = format!("{wrong} of {} are not less than the {} columns", self.rows, self.columns);
            return Err(GpuError::invalid(Self::NAME, "labels", reason));
        }
        Ok(sum / self.rows as f64)
    }
}

/// The calls that this library gives a device.
pub trait Rowwise {
    /// `y = exp(x) / sum(exp(x))` in each row of x, and `log_sums = log(sum(exp(x)))`.
    ///
    /// [`shape`](RowwiseOptions::shape) must be given. x and y are row-major and dense; y has rows *
    /// columns elements and `log_sums` one a row, no more. A row that holds NaN becomes NaN; in a
    /// row with an infinity, or of nothing but minus infinity, elements may be NaN.
    fn softmax(&self, x: &GpuRef<f32>, y: &GpuRef<f32>, log_sums: &GpuRef<f32>) -> Call<Softmax>;

    /// The mean over the rows of `log_sums[row] - x[row, labels[row]]`, summed in `f64`: the loss
    /// of a classifier.
    ///
    /// [`shape`](RowwiseOptions::shape) must be given; `log_sums` are those of
    /// [`softmax`](Rowwise::softmax). A label that names no column is a
    /// [`GpuError::InvalidArgument`] when the operation has finished.
    fn cross_entropy(&self, x: &GpuRef<f32>, log_sums: &GpuRef<f32>, labels: &GpuRef<u32>) -> Call<CrossEntropy>;
}

impl Rowwise for Device {
    fn softmax(&self, x: &GpuRef<f32>, y: &GpuRef<f32>, log_sums: &GpuRef<f32>) -> Call<Softmax> {
        Call::new(self, Softmax::default(), [x.view(), y.view(), log_sums.view()])
    }

    fn cross_entropy(&self, x: &GpuRef<f32>, log_sums: &GpuRef<f32>, labels: &GpuRef<u32>) -> Call<CrossEntropy> {
        Call::new(self, CrossEntropy::default(), [x.view(), log_sums.view(), labels.view()])
    }
}

/// The options of this library's calls.
pub trait RowwiseOptions: Sized {
    /// Rows and columns. Must be given; zero is refused.
    fn shape(self, rows: usize, columns: usize) -> Self;
}

impl RowwiseOptions for Call<Softmax> {
    fn shape(self, rows: usize, columns: usize) -> Self {
        self.map(|_| Softmax { rows: rows as u64, columns: columns as u64 })
    }
}

impl RowwiseOptions for Call<CrossEntropy> {
    fn shape(self, rows: usize, columns: usize) -> Self {
        self.map(|_| CrossEntropy { rows: rows as u64, columns: columns as u64 })
    }
}

/// Elements of a matrix that has some.
fn check_shape(operation: &str, rows: u64, columns: u64) -> Result<u64> {
    for (name, size) in [("rows", rows), ("columns", columns)] {
        if size == 0 {
            let reason = format!("{name}: 0, or not given; it must be 1 or more");
            return Err(GpuError::invalid(operation, "shape", reason));
        }
    }
    checked_product(operation, "x", &[rows, columns])
}

/// An output that is marked as overwritten must have no element that is not.
fn expect_whole(operation: &str, buffer: &BufferShape, elements: u64) -> Result<()> {
    buffer.expect_len(operation, elements)?;
    if buffer.len == elements {
        return Ok(());
    }
    let reason = format!("it has {} elements, {elements} would be written; give a slice of it", buffer.len);
    Err(GpuError::invalid(operation, buffer.name, reason))
}
