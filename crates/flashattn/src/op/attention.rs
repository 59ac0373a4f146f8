//! Attention, forward.

use atomr_cuda_core::{
    Argument, Arguments, BufferShape, DType, GpuError, LibraryId, Operation, Result, checked_product, reply_value,
};
use serde::{Deserialize, Serialize};

use super::layout::{Extents, Strides, expect_exact};
use super::{LIBRARY, MAX_SEQUENCE, Shape, expect_half};

/// Attention forward, `o = softmax(scale * q k^T + mask) v` for each sequence and head.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Attention {
    /// Sizes and scaling.
    pub shape: Shape,
    /// Queries of a sequence; where sequences are packed, of the longest.
    pub seq_q: u64,
    /// Keys of a sequence; where sequences are packed, of the longest.
    pub seq_k: u64,
    /// Query i sees keys up to `i + seq_k - seq_q`.
    pub causal: bool,
    /// Limits on the distance of a key from its query.
    pub window: Window,
    /// Where q, k, v and o are not dense.
    pub strides: [Option<Strides>; 4],
    /// Sequences of different lengths, one behind the other.
    pub packed: Option<Packed>,
    /// Which argument the logarithms of the sums are, where they are asked for.
    pub lse: Option<u8>,
    /// Which kernels.
    pub kernels: Kernels,
}

/// Query i sees keys from `i + d - left` to `i + d + right`, with `d = seq_k - seq_q`: the last query
/// and the last key are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Window {
    /// Keys before the query's own; `None`: all.
    pub left: Option<u32>,
    /// Keys after it; `None`: all.
    pub right: Option<u32>,
}

/// Sequences one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Rows of q and o.
    pub total_q: u64,
    /// Rows of k and v.
    pub total_k: u64,
    /// Which argument `cu_seqlens_q` is; `cu_seqlens_k` is the next.
    pub at: u8,
    /// Whether lengths that do not fit are reported as errors.
    pub validate: bool,
}

/// The families of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kernels {
    /// The fastest that the device has.
    #[default]
    Auto,
    /// Warp-level tensor instructions and asynchronous copies: compute capability 8.0 and later.
    Mma,
    /// Warpgroup instructions, the tensor memory accelerator, warp specialisation: 9.0.
    Wgmma,
}

impl Attention {
    /// Whether a window holds.
    pub fn windowed(&self) -> bool {
        self.window != Window::default()
    }

    /// Sizes of q and o, then of k and v.
    pub(crate) fn extents(&self) -> (Extents, Extents) {
        let Shape { batch, heads_q, heads_kv, head_dim, .. } = self.shape;
        let (batch, seq_q, seq_k) = match self.packed {
            Some(packed) => (1, packed.total_q, packed.total_k),
            None => (batch, self.seq_q, self.seq_k),
        };
        let extents = |seq, heads| Extents { batch, seq, heads, head_dim };
        (extents(seq_q, heads_q), extents(seq_k, heads_kv))
    }

    /// The strides of q, k, v and o that hold, for sizes that were checked.
    pub(crate) fn strides(&self) -> [Strides; 4] {
        let (queries, keys) = self.extents();
        let zero = Strides { batch: 0, seq: 0, head: 0 };
        let dense = [queries, keys, keys, queries].map(|extents| extents.dense().unwrap_or(zero));
        std::array::from_fn(|at| self.strides[at].unwrap_or(dense[at]))
    }

    /// Elements of the logarithms of the sums.
    fn lse_len(&self) -> Result<u64> {
        let factors = match self.packed {
            Some(packed) => vec![self.shape.heads_q, packed.total_q],
            None => vec![self.shape.batch, self.shape.heads_q, self.seq_q],
        };
        checked_product(Self::NAME, "lse", &factors)
    }

    /// Whether every element of o and of the logarithms is written.
    fn fills_outputs(&self) -> bool {
        self.packed.is_none() && self.seq_q > 0
    }

    fn fills_o(&self) -> bool {
        self.fills_outputs() && self.strides[3].is_none()
    }

    fn validates(&self) -> bool {
        self.packed.is_some_and(|packed| packed.validate)
    }
}

impl Operation for Attention {
    type Output = ();
    const NAME: &'static str = "flashattn.attention";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 1;

    fn arguments(&self) -> Arguments {
        let mut arguments: Arguments = ["q", "k", "v"].map(Argument::read).into_iter().collect();
        arguments.push(if self.fills_o() { Argument::write("o") } else { Argument::read_write("o") });
        let lse = if self.fills_outputs() { Argument::write("lse") } else { Argument::read_write("lse") };
        let lengths = ["cu_seqlens_q", "cu_seqlens_k"].map(Argument::read);
        match (self.lse, self.packed.map(|packed| packed.at)) {
            (Some(at), Some(packed)) if at < packed => {
                arguments.push(lse);
                arguments.extend(lengths);
            }
            (at, packed) => {
                arguments.extend(lengths.into_iter().filter(|_| packed.is_some()));
                arguments.extend(at.map(|_| lse));
            }
        }
        arguments
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        self.shape.check(Self::NAME)?;
        let invalid = |argument: &str, reason: String| Err(GpuError::invalid(Self::NAME, argument, reason));
        for (name, length) in [("seq_q", self.seq_q), ("seq_k", self.seq_k)] {
            if length > MAX_SEQUENCE {
                return invalid(name, format!("{length}; at most {MAX_SEQUENCE}"));
            }
        }
        if let Some(packed) = self.packed {
            for (name, total) in [("total_q", packed.total_q), ("total_k", packed.total_k)] {
                if total > i32::MAX as u64 {
                    return invalid(name, format!("{total}; positions are 32-bit"));
                }
            }
        }
        // The smallest tile has 64 queries; tiles are numbered with 31 bits.
        let tiles = checked_product(Self::NAME, "q", &[self.seq_q.div_ceil(64), self.shape.batch, self.shape.heads_q])?;
        if tiles > i32::MAX as u64 {
            return invalid("q", format!("{tiles} tiles of 64 queries; at most {}", i32::MAX));
        }
        let [q, k, v, o, optional @ ..] = buffers else { return Ok(()) };
        expect_half(Self::NAME, q.dtype)?;
        let (queries, keys) = self.extents();
        for (extents, given, buffer) in
            [(queries, 0, q), (keys, 1, k), (keys, 2, v), (queries, 3, o)].map(|(e, at, b)| (e, self.strides[at], b))
        {
            buffer.expect_dtype(Self::NAME, q.dtype)?;
            extents.check(Self::NAME, given, buffer)?;
        }
        if self.fills_o() {
            queries.check_whole(Self::NAME, o)?;
        }
        for buffer in optional {
            match buffer.name {
                "lse" => {
                    buffer.expect_dtype(Self::NAME, DType::F32)?;
                    match self.fills_outputs() {
                        false => buffer.expect_len(Self::NAME, self.lse_len()?)?,
                        true => expect_exact(Self::NAME, buffer, self.lse_len()?)?,
                    }
                }
                _ => {
                    buffer.expect_dtype(Self::NAME, DType::I32)?;
                    buffer.expect_len(Self::NAME, self.shape.batch + 1)?;
                }
            }
        }
        Ok(())
    }

    fn reply_bytes(&self) -> usize {
        if self.validates() { size_of::<u64>() } else { 0 }
    }

    fn output(self, reply: &[u8]) -> Result<()> {
        if !self.validates() {
            return Ok(());
        }
        let found: u64 = reply_value(Self::NAME, reply)?;
        let (kind, at) = (found >> 32, found as u32);
        let problem = match kind {
            0 => return Ok(()),
            1 => (
                "cu_seqlens_q",
                format!("entry {at} is not where a sequence of at most {} may start or end", self.seq_q),
            ),
            2 => (
                "cu_seqlens_k",
                format!("entry {at} is not where a sequence of at most {} may start or end", self.seq_k),
            ),
            other => ("reply", format!("kind {other}")),
        };
        let totals = self.packed.map_or((0, 0), |packed| (packed.total_q, packed.total_k));
        let reason = format!(
            "{}: they begin with 0, do not fall, and end at most at {} (q) and {} (k); nothing was computed",
            problem.1, totals.0, totals.1
        );
        Err(GpuError::invalid(Self::NAME, problem.0, reason))
    }
}
