//! A batch of Fourier transforms.

use atomr_cuda_core::{Argument, Arguments, BufferShape, DType, GpuError, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};

use super::LIBRARY;
use super::layout::{Embedding, Lengths};

/// A batch of discrete Fourier transforms in one to three dimensions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transform {
    /// Real or complex, forward or inverse.
    pub kind: Kind,
    /// Lengths of the transform (of the real side, where there is one), the slowest dimension first.
    pub lengths: Lengths,
    /// Transforms.
    pub batch: u64,
    /// What the result is multiplied by.
    pub norm: Norm,
    /// Where the input's elements lie; `None`: without gaps.
    pub input: Option<Embedding>,
    /// Where the output's elements lie; `None`: without gaps.
    pub output: Option<Embedding>,
    /// Whether there is one buffer for both.
    pub in_place: bool,
}

/// Real or complex, and which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Complex to complex, `y[k] = sum x[n] exp(-2 pi i n k / N)` (`CUFFT_FORWARD`).
    Forward,
    /// Complex to complex with the other sign (`CUFFT_INVERSE`).
    Inverse,
    /// Real to complex, forward: the last dimension of the result has `n / 2 + 1` elements.
    RealForward,
    /// Complex to real, inverse, of the `n / 2 + 1` elements that real forward gives.
    RealInverse,
}

/// What the result is multiplied by; N is the product of the lengths. The names are NumPy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Norm {
    /// By nothing, as cuFFT does: forward and inverse together multiply by N.
    #[default]
    None,
    /// The inverse by 1 / N.
    Backward,
    /// Both by 1 / sqrt(N).
    Ortho,
    /// The forward transform by 1 / N.
    Forward,
}

impl Kind {
    /// Whether it has the sign of the forward transform.
    pub fn is_forward(self) -> bool {
        matches!(self, Kind::Forward | Kind::RealForward)
    }
}

impl Transform {
    pub(crate) fn new(kind: Kind, in_place: bool) -> Self {
        let (input, output) = (None, None);
        Transform { kind, lengths: Lengths::new(), batch: 1, norm: Norm::None, input, output, in_place }
    }

    /// The factor of the result.
    pub fn factor(&self) -> f64 {
        let elements = || self.lengths.iter().map(|length| *length as f64).product::<f64>();
        match (self.norm, self.kind.is_forward()) {
            (Norm::Ortho, _) => elements().sqrt().recip(),
            (Norm::Backward, false) | (Norm::Forward, true) => elements().recip(),
            _ => 1.0,
        }
    }

    /// Lengths with `n / 2 + 1` in the last place.
    fn half(&self) -> Lengths {
        let mut lengths = self.lengths.clone();
        if let Some(last) = lengths.last_mut() {
            *last = *last / 2 + 1;
        }
        lengths
    }

    /// Lengths of the input.
    pub(crate) fn input_lengths(&self) -> Lengths {
        if self.kind == Kind::RealInverse { self.half() } else { self.lengths.clone() }
    }

    /// Lengths of the output.
    pub(crate) fn output_lengths(&self) -> Lengths {
        if self.kind == Kind::RealForward { self.half() } else { self.lengths.clone() }
    }

    /// Layouts of input and output. In place, the real side's rows have room for the complex side's.
    pub(crate) fn embeddings(&self) -> Result<(Embedding, Embedding)> {
        let dense = |lengths: &[u64]| {
            Embedding::dense(lengths).ok_or_else(|| GpuError::SizeOverflow {
                operation: Self::NAME.into(),
                argument: "lengths".into(),
                expression: lengths.iter().map(u64::to_string).collect::<Vec<_>>().join(" * "),
            })
        };
        let padded = |lengths: &[u64]| {
            let mut padded = Lengths::from_slice(lengths);
            if let Some(last) = padded.last_mut() {
                *last = (*last / 2 + 1) * 2;
            }
            dense(&padded)
        };
        let side = |given: &Option<Embedding>, lengths: &[u64], real: bool| match given {
            Some(given) => Ok(given.clone()),
            None if real && self.in_place => padded(lengths),
            None => dense(lengths),
        };
        let input = side(&self.input, &self.input_lengths(), self.kind == Kind::RealForward)?;
        let output = side(&self.output, &self.output_lengths(), self.kind == Kind::RealInverse)?;
        Ok((input, output))
    }

    /// Whether every element of the output is written.
    fn fills_output(&self) -> bool {
        self.output.is_none()
    }

    /// The types of input and output, given that of the first buffer.
    pub(crate) fn types(&self, first: DType) -> Result<(DType, DType)> {
        let real = match first {
            DType::F16 | DType::C16 => (DType::F16, DType::C16),
            DType::F32 | DType::C32 => (DType::F32, DType::C32),
            DType::F64 | DType::C64 => (DType::F64, DType::C64),
            other => {
                let reason =
                    format!("its elements are {other}; there are transforms of f16, f32 and f64, real and complex");
                return Err(GpuError::invalid(Self::NAME, "x", reason));
            }
        };
        Ok(match self.kind {
            Kind::Forward | Kind::Inverse => (real.1, real.1),
            Kind::RealForward => real,
            Kind::RealInverse => (real.1, real.0),
        })
    }
}

/// Lengths and counts stay far from the end of cuFFT's 64-bit integers.
const MOST: u64 = 1 << 40;

impl Operation for Transform {
    type Output = ();
    const NAME: &'static str = "cufft.transform";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 1;

    fn arguments(&self) -> Arguments {
        if self.in_place {
            return [Argument::read_write("x")].into_iter().collect();
        }
        // cuFFT uses the input of an inverse real transform as room to work in.
        let x = if self.kind == Kind::RealInverse { Argument::read_write("x") } else { Argument::read("x") };
        let y = if self.fills_output() { Argument::write("y") } else { Argument::read_write("y") };
        [x, y].into_iter().collect()
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        let invalid = |argument: &str, reason: String| Err(GpuError::invalid(Self::NAME, argument, reason));
        if !(1..=3).contains(&self.lengths.len()) {
            return invalid("shape", format!("{} dimensions; 1 to 3, by `shape`", self.lengths.len()));
        }
        if let Some(length) = self.lengths.iter().find(|length| !(1..=MOST).contains(*length)) {
            return invalid("shape", format!("a length of {length}; 1 to {MOST}"));
        }
        if !(1..=MOST).contains(&self.batch) {
            return invalid("batch", format!("{} transforms; 1 to {MOST}", self.batch));
        }
        let (input, output) = self.embeddings()?;
        let Some(x) = buffers.first() else { return Ok(()) };
        let (input_type, output_type) = self.types(x.dtype)?;
        if matches!(x.dtype, DType::F16 | DType::C16)
            && let Some(length) = self.lengths.iter().find(|length| !length.is_power_of_two())
        {
            return invalid("shape", format!("a length of {length}; transforms of f16 have powers of two"));
        }
        if self.in_place {
            return self.check_in_place(x, &input, &output);
        }
        let [_, y, ..] = buffers else { return Ok(()) };
        x.expect_dtype(Self::NAME, input_type)?;
        y.expect_dtype(Self::NAME, output_type)?;
        input.check(Self::NAME, &self.input_lengths(), self.batch, x, self.kind == Kind::RealInverse)?;
        output.check(Self::NAME, &self.output_lengths(), self.batch, y, true)?;
        let elements = self.batch.saturating_mul(output.distance);
        if self.fills_output() && y.len != elements {
            let reason = format!("it has {} elements, {elements} would be written; give a slice of it", y.len);
            return invalid("y", reason);
        }
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Transform {
    /// In place, both sides see the buffer with their own type.
    fn check_in_place(&self, x: &BufferShape, input: &Embedding, output: &Embedding) -> Result<()> {
        let (input_type, output_type) = self.types(x.dtype)?;
        let expected = match self.kind {
            Kind::Forward | Kind::Inverse => input_type,
            Kind::RealForward => input_type,
            Kind::RealInverse => output_type,
        };
        x.expect_dtype(Self::NAME, expected)?;
        let bytes = x.len * expected.size() as u64;
        let seen = |dtype: DType| BufferShape { dtype, len: bytes / dtype.size() as u64, ..*x };
        input.check(Self::NAME, &self.input_lengths(), self.batch, &seen(input_type), true)?;
        output.check(Self::NAME, &self.output_lengths(), self.batch, &seen(output_type), true)?;
        let apart = |side: &Embedding, dtype: DType| {
            let steps = side.steps().unwrap_or_default();
            let rows: Vec<u64> = steps.iter().rev().skip(1).map(|step| step * dtype.size() as u64).collect();
            (rows, side.distance * dtype.size() as u64, side.stride)
        };
        let (from, to) = (apart(input, input_type), apart(output, output_type));
        let one = self.batch == 1;
        if from.0 != to.0 || (!one && from.1 != to.1) || from.2 != to.2 {
            let reason = "in place, rows and transforms must begin at the same bytes before and after";
            return Err(GpuError::invalid(Self::NAME, "layout", reason));
        }
        Ok(())
    }
}
