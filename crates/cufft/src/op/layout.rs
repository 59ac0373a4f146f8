//! Where the elements of a batch of transforms lie: cuFFT's advanced data layout.

use atomr_cuda_core::{BufferShape, GpuError, Result};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// One to three lengths, the slowest dimension first.
pub type Lengths = SmallVec<[u64; 3]>;

/// Where elements lie, in elements, as `cufftMakePlanMany64` has it: element `[i][j][k]` of transform
/// `b` is at `b * distance + ((i * embed[1] + j) * embed[2] + k) * stride`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    /// Extents of the array that the data lies in, one a dimension; the first is not used (`inembed`,
    /// `onembed`).
    pub embed: Lengths,
    /// From one element of the last dimension to the next (`istride`, `ostride`).
    pub stride: u64,
    /// From one transform to the next (`idist`, `odist`).
    pub distance: u64,
}

impl Embedding {
    /// Elements without gaps; `None` where their number overflows.
    pub(crate) fn dense(lengths: &[u64]) -> Option<Self> {
        let elements = lengths.iter().try_fold(1u64, |product, length| product.checked_mul(*length))?;
        Some(Embedding { embed: lengths.into(), stride: 1, distance: elements })
    }

    /// Distances between neighbours in each dimension; `None` on overflow.
    pub(crate) fn steps(&self) -> Option<Lengths> {
        let mut step = self.stride;
        let mut steps = Lengths::from_elem(0, self.embed.len());
        for (at, extent) in self.embed.iter().enumerate().rev() {
            steps[at] = step;
            if at > 0 {
                step = step.checked_mul(*extent)?;
            }
        }
        Some(steps)
    }

    /// Checks it for `batch` transforms of `lengths`, in `buffer`. Where they are written, no two
    /// elements may meet.
    pub(crate) fn check(
        &self,
        operation: &str,
        lengths: &[u64],
        batch: u64,
        buffer: &BufferShape,
        written: bool,
    ) -> Result<()> {
        let invalid = |reason: String| Err(GpuError::invalid(operation, buffer.name, reason));
        let overflow = || GpuError::SizeOverflow {
            operation: operation.into(),
            argument: buffer.name.into(),
            expression: format!("{self:?} for {batch} transforms of {lengths:?}"),
        };
        if self.embed.len() != lengths.len() {
            return invalid(format!("its layout has {} dimensions, the transform {}", self.embed.len(), lengths.len()));
        }
        for (extent, length) in self.embed.iter().zip(lengths).skip(1) {
            if extent < length {
                return invalid(format!("extents {:?} are too small for {lengths:?}", self.embed));
            }
        }
        if self.stride == 0 {
            return invalid("a stride of 0".into());
        }
        let steps = self.steps().ok_or_else(overflow)?;
        let mut dimensions: SmallVec<[(u64, u64); 4]> = lengths.iter().copied().zip(steps).collect();
        dimensions.push((batch, self.distance));
        dimensions.retain(|(count, _)| *count > 1);
        dimensions.sort_unstable_by_key(|(_, step)| *step);
        let mut span = 1u64;
        for (count, step) in dimensions {
            if written && step < span {
                return invalid(format!("elements {step} apart lie over others; {span} are needed"));
            }
            span = (count - 1).checked_mul(step).and_then(|more| more.checked_add(span)).ok_or_else(overflow)?;
        }
        if span > i64::MAX as u64 / 32 {
            return Err(overflow());
        }
        buffer.expect_len(operation, span)
    }
}

#[cfg(test)]
mod tests {
    use atomr_cuda_core::DType;
    use smallvec::smallvec;

    use super::*;

    fn check(embed: &[u64], stride: u64, distance: u64, len: u64) -> Result<()> {
        let embedding = Embedding { embed: embed.into(), stride, distance };
        let buffer = BufferShape { name: "y", dtype: DType::C32, len };
        embedding.check("test", &[3, 4], 2, &buffer, true)
    }

    #[test]
    fn layouts_are_taken_unless_elements_meet() {
        assert_eq!(Embedding::dense(&[3, 4]).unwrap().steps().unwrap(), Lengths::from_slice(&[4, 1]));
        assert!(check(&[3, 4], 1, 12, 24).is_ok());
        assert!(check(&[0, 4], 1, 12, 24).is_ok(), "the first extent is not used");
        assert!(check(&[3, 5], 2, 40, 40 + 2 * 10 + 3 * 2 + 1).is_ok());
        assert!(check(&[3, 4], 2, 1, 24).is_ok(), "the transforms' elements in turn");
        assert!(check(&[3, 4], 1, 12, 23).is_err(), "one element short");
        assert!(check(&[3, 3], 1, 12, 24).is_err(), "rows do not fit");
        assert!(check(&[3, 4], 1, 11, 24).is_err(), "transforms meet");
        assert!(check(&[3, 4], 0, 12, 24).is_err());
        assert!(check(&[3], 1, 12, 24).is_err());
        assert!(check(&[3, u64::MAX], 2, 12, 24).is_err());
        let overflowing: Lengths = smallvec![u64::MAX, 2];
        assert!(Embedding::dense(&overflowing).is_none());
    }
}
