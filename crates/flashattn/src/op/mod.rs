//! The operations as data, their checks, and the calls that make them. No actor and no CUDA here.

mod attention;
mod call;
mod decode;
mod layout;
mod plan;

use atomr_cuda_core::{CudaDtype, DType, EnabledLibraries, GpuError, LibraryId, Operation, Result, bf16, f16};
use serde::{Deserialize, Serialize};

pub use attention::{Attention, Kernels, Packed, Window};
pub use call::{AttentionCall, AttentionOptions, DecodeOptions, MaskOptions};
pub use decode::Decode;
pub(crate) use decode::MAX_SPLITS;
pub use layout::Strides;
pub(crate) use plan::Planned;
pub use plan::{AttentionPlan, PlanQuery};

/// The number of this library.
pub const LIBRARY: LibraryId = LibraryId::of(EnabledLibraries::FLASHATTN);

pub(crate) const OPERATIONS: &[(u16, &str)] = &[Attention::ID, Decode::ID, PlanQuery::ID];

/// The longest sequence: positions and distances then fit 32 bits with room to add two of them.
pub const MAX_SEQUENCE: u64 = 1 << 28;
/// The most sequences of one call.
pub const MAX_BATCH: u64 = 65_535;
/// Head dimensions that there are kernels for.
pub const HEAD_DIMS: [u64; 3] = [64, 128, 256];

/// Element types of q, k, v and o.
pub trait HalfElement: CudaDtype {}
impl HalfElement for f16 {}
impl HalfElement for bf16 {}

/// What both operations have: which scores count, and how they are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Shape {
    /// Sequences.
    pub batch: u64,
    /// Query heads.
    pub heads_q: u64,
    /// Key and value heads; divides `heads_q`.
    pub heads_kv: u64,
    /// Elements of a head: 64, 128 or 256.
    pub head_dim: u64,
    /// Factor of the scores; `None`: `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

impl Shape {
    /// The factor of the scores.
    pub fn scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / (self.head_dim.max(1) as f64).sqrt()) as f32)
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> u64 {
        self.heads_q / self.heads_kv.max(1)
    }

    pub(crate) fn check(&self, operation: &str) -> Result<()> {
        let invalid = |argument: &str, reason: String| Err(GpuError::invalid(operation, argument, reason));
        if !(1..=MAX_BATCH).contains(&self.batch) {
            return invalid("batch", format!("{} sequences; 1 to {MAX_BATCH}, by `shape`", self.batch));
        }
        if !HEAD_DIMS.contains(&self.head_dim) {
            return invalid("head_dim", format!("{}; there are kernels for 64, 128 and 256", self.head_dim));
        }
        if self.heads_kv == 0 || self.heads_q == 0 || !self.heads_q.is_multiple_of(self.heads_kv) {
            let reason =
                format!("{} query heads share {} key heads; a multiple is needed", self.heads_q, self.heads_kv);
            return invalid("heads", reason);
        }
        if self.batch.checked_mul(self.heads_q).is_none_or(|heads| heads > i32::MAX as u64) {
            return invalid("heads", format!("{} in each of {} sequences is too many", self.heads_q, self.batch));
        }
        let positive = |value: f32| value.is_finite() && value > 0.0;
        if let Some(scale) = self.scale.filter(|scale| !positive(*scale)) {
            return invalid("scale", format!("{scale}; it must be finite and above zero"));
        }
        if let Some(softcap) = self.softcap.filter(|softcap| !positive(*softcap)) {
            return invalid("softcap", format!("{softcap}; it must be finite and above zero"));
        }
        Ok(())
    }
}

/// Requires f16 or bf16, as the first buffer has.
pub(crate) fn expect_half(operation: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F16 | DType::BF16 => Ok(()),
        other => Err(GpuError::invalid(operation, "q", format!("its elements are {other}; f16 and bf16 have kernels"))),
    }
}
