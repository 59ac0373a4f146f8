//! Where the elements of a tensor of heads lie.

use atomr_cuda_core::{BufferShape, GpuError, Result};
use serde::{Deserialize, Serialize};

/// Elements from one sequence, position and head to the next; the elements of a head are contiguous.
///
/// For a cache, `batch` is from page to page and `seq` from token to token within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strides {
    /// From sequence to sequence; unused where sequences are packed.
    pub batch: u64,
    /// From position to position.
    pub seq: u64,
    /// From head to head.
    pub head: u64,
}

/// Counts of the three outer dimensions, in the order of [`Strides`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extents {
    pub batch: u64,
    pub seq: u64,
    pub heads: u64,
    pub head_dim: u64,
}

impl Extents {
    /// `[batch, seq, heads, head_dim]`, dense.
    pub fn dense(&self) -> Option<Strides> {
        let seq = self.heads.checked_mul(self.head_dim)?;
        Some(Strides { batch: self.seq.checked_mul(seq)?, seq, head: self.head_dim })
    }

    fn dimensions(&self, strides: &Strides) -> [(u64, u64, &'static str); 3] {
        [(self.batch, strides.batch, "batch"), (self.seq, strides.seq, "seq"), (self.heads, strides.head, "head")]
    }

    /// Elements from the first to the last, both included.
    fn span(&self, strides: &Strides) -> Option<u64> {
        if self.dimensions(strides).iter().any(|(count, ..)| *count == 0) {
            return Some(0);
        }
        self.dimensions(strides)
            .iter()
            .try_fold(self.head_dim, |span, (count, stride, _)| span.checked_add((count - 1).checked_mul(*stride)?))
    }

    /// The strides that hold: those given, or dense ones; checked against the buffer.
    pub fn check(&self, operation: &str, given: Option<Strides>, buffer: &BufferShape) -> Result<Strides> {
        let overflow = || GpuError::SizeOverflow {
            operation: operation.into(),
            argument: buffer.name.into(),
            expression: format!("{} * {} * {} * {}", self.batch, self.seq, self.heads, self.head_dim),
        };
        let strides = match given {
            Some(strides) => strides,
            None => self.dense().ok_or_else(overflow)?,
        };
        if self.span(&strides) == Some(0) {
            return Ok(strides);
        }
        let invalid = |reason: String| Err(GpuError::invalid(operation, buffer.name, reason));
        let mut used: Vec<_> = self.dimensions(&strides).into_iter().filter(|(count, ..)| *count > 1).collect();
        used.sort_unstable_by_key(|(_, stride, _)| *stride);
        let mut inner = self.head_dim;
        for (count, stride, name) in used {
            if !stride.is_multiple_of(8) {
                return invalid(format!("{name} stride {stride} is not a multiple of 8 elements (16 bytes)"));
            }
            if stride < inner {
                return invalid(format!(
                    "{name} stride {stride} lays elements over others; at least {inner} is needed"
                ));
            }
            inner = (count - 1).checked_mul(stride).and_then(|span| span.checked_add(inner)).ok_or_else(overflow)?;
        }
        buffer.expect_len(operation, self.span(&strides).ok_or_else(overflow)?)?;
        Ok(strides)
    }

    /// Requires that `buffer`, which is overwritten, has no element that is not.
    pub fn check_whole(&self, operation: &str, buffer: &BufferShape) -> Result<()> {
        let elements = self.dense().and_then(|dense| dense.batch.checked_mul(self.batch)).unwrap_or(u64::MAX);
        expect_exact(operation, buffer, elements)
    }
}

/// Requires exactly `elements`.
pub(crate) fn expect_exact(operation: &str, buffer: &BufferShape, elements: u64) -> Result<()> {
    buffer.expect_len(operation, elements)?;
    if buffer.len == elements {
        return Ok(());
    }
    let reason = format!("it has {} elements, {elements} would be written; give a slice of it", buffer.len);
    Err(GpuError::invalid(operation, buffer.name, reason))
}

#[cfg(test)]
mod tests {
    use atomr_cuda_core::DType;

    use super::*;

    fn check(strides: [u64; 3], len: u64) -> Result<Strides> {
        let extents = Extents { batch: 2, seq: 3, heads: 4, head_dim: 64 };
        let [batch, seq, head] = strides;
        let buffer = BufferShape { name: "q", dtype: DType::F16, len };
        extents.check("test", Some(Strides { batch, seq, head }), &buffer)
    }

    #[test]
    fn any_order_of_dimensions_is_taken_unless_elements_meet() {
        assert!(check([768, 256, 64], 1536).is_ok());
        assert!(check([768, 64, 192], 1536).is_ok(), "heads before positions");
        assert!(check([2304, 768, 64], 2304 + 2 * 768 + 256).is_ok(), "q, k and v beside one another");
        assert!(check([768, 256, 64], 1535).is_err(), "one element short");
        assert!(check([760, 256, 64], 1536).is_err(), "sequences meet");
        assert!(check([768, 64, 64], 1536).is_err(), "heads meet positions");
        assert!(check([768, 256, 68], 1536).is_err(), "not a multiple of eight");
        assert!(check([u64::MAX - 7, 256, 64], 1536).is_err(), "more than there can be");
    }
}
