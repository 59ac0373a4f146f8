//! Attention of the newest positions against a paged cache.

use atomr_cuda_core::{
    Argument, Arguments, BufferShape, DType, GpuError, LibraryId, Operation, Result, checked_product, reply_value,
};
use serde::{Deserialize, Serialize};

use super::layout::{Extents, Strides, expect_exact};
use super::{LIBRARY, MAX_SEQUENCE, Shape, expect_half};

/// Attention of the newest `seq_q` positions of each sequence against its cached keys and values,
/// their own included: query i sees the cached positions up to `len - seq_q + i`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Decode {
    /// Sizes and scaling.
    pub shape: Shape,
    /// Queries of each sequence.
    pub seq_q: u64,
    /// Tokens of a page: a power of two, 16 or more.
    pub page_size: u64,
    /// Pages of the caches.
    pub num_pages: u64,
    /// Entries of a row of the page table.
    pub max_pages: u64,
    /// The longest sequence, where it is known to be shorter than its row of pages; decides only how
    /// the work is split.
    pub longest: Option<u64>,
    /// Keys before the query's own that it sees; `None`: all.
    pub window: Option<u32>,
    /// Where q, the caches of k and v, and o are not dense.
    pub strides: [Option<Strides>; 4],
    /// Parts of a sequence that are computed side by side; `None`: as many as fill the device.
    pub splits: Option<u32>,
    /// Whether the logarithms of the sums are asked for.
    pub lse: bool,
    /// Whether page numbers and lengths that do not fit are reported as errors.
    pub validate: bool,
}

impl Decode {
    /// Sizes of q and o, then of the caches.
    pub(crate) fn extents(&self) -> (Extents, Extents) {
        let Shape { batch, heads_q, heads_kv, head_dim, .. } = self.shape;
        let queries = Extents { batch, seq: self.seq_q, heads: heads_q, head_dim };
        (queries, Extents { batch: self.num_pages, seq: self.page_size, heads: heads_kv, head_dim })
    }

    /// The strides of q, k, v and o that hold, for sizes that were checked.
    pub(crate) fn strides(&self) -> [Strides; 4] {
        let (queries, cache) = self.extents();
        let zero = Strides { batch: 0, seq: 0, head: 0 };
        let dense = [queries, cache, cache, queries].map(|extents| extents.dense().unwrap_or(zero));
        std::array::from_fn(|at| self.strides[at].unwrap_or(dense[at]))
    }

    /// The most tokens that a sequence can have.
    pub(crate) fn capacity(&self) -> u64 {
        self.max_pages.saturating_mul(self.page_size)
    }
}

impl Operation for Decode {
    type Output = ();
    const NAME: &'static str = "flashattn.decode";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 2;

    fn arguments(&self) -> Arguments {
        let o = if self.strides[3].is_none() { Argument::write("o") } else { Argument::read_write("o") };
        let mut arguments: Arguments = ["q", "k_cache", "v_cache"].map(Argument::read).into_iter().collect();
        arguments.push(o);
        arguments.extend(["page_table", "cache_lens"].map(Argument::read));
        arguments.extend(self.lse.then_some(Argument::write("lse")));
        arguments
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        self.shape.check(Self::NAME)?;
        let invalid = |argument: &str, reason: String| Err(GpuError::invalid(Self::NAME, argument, reason));
        if !self.page_size.is_power_of_two() || !(16..=1 << 20).contains(&self.page_size) {
            return invalid(
                "page_size",
                format!("{}; a power of two from 16 to {}, by `cache`", self.page_size, 1 << 20),
            );
        }
        if !(1..=i32::MAX as u64).contains(&self.num_pages) {
            return invalid("num_pages", format!("{}; 1 to {}, by `cache`", self.num_pages, i32::MAX));
        }
        if self.max_pages == 0 || self.capacity() > MAX_SEQUENCE {
            let reason =
                format!("{} pages of {} tokens; 1 page to {MAX_SEQUENCE} tokens", self.max_pages, self.page_size);
            return invalid("max_pages", reason);
        }
        if !(1..=MAX_SEQUENCE).contains(&self.seq_q) {
            return invalid("seq_q", format!("{}; 1 to {MAX_SEQUENCE}", self.seq_q));
        }
        let rows = checked_product(Self::NAME, "q", &[self.shape.batch, self.seq_q, self.shape.heads_q])?;
        if rows > i32::MAX as u64 {
            return invalid("q", format!("{rows} rows; at most {}", i32::MAX));
        }
        let entries = checked_product(Self::NAME, "page_table", &[self.shape.batch, self.max_pages])?;
        if entries > u32::MAX.into() {
            return invalid("page_table", format!("{entries} entries; at most {}", u32::MAX));
        }
        if self.splits.is_some_and(|splits| !(1..=MAX_SPLITS).contains(&splits)) {
            return invalid("splits", format!("{:?}; 1 to {MAX_SPLITS}", self.splits));
        }
        let [q, k, v, o, page_table, cache_lens, optional @ ..] = buffers else { return Ok(()) };
        expect_half(Self::NAME, q.dtype)?;
        let (queries, cache) = self.extents();
        for (at, extents, buffer) in [(0, queries, q), (1, cache, k), (2, cache, v), (3, queries, o)] {
            buffer.expect_dtype(Self::NAME, q.dtype)?;
            extents.check(Self::NAME, self.strides[at], buffer)?;
        }
        if self.strides[3].is_none() {
            queries.check_whole(Self::NAME, o)?;
        }
        page_table.expect_dtype(Self::NAME, DType::I32)?;
        page_table.expect_len(Self::NAME, entries)?;
        cache_lens.expect_dtype(Self::NAME, DType::I32)?;
        cache_lens.expect_len(Self::NAME, self.shape.batch)?;
        for lse in optional {
            lse.expect_dtype(Self::NAME, DType::F32)?;
            expect_exact(Self::NAME, lse, rows)?;
        }
        Ok(())
    }

    fn reply_bytes(&self) -> usize {
        if self.validate { size_of::<u64>() } else { 0 }
    }

    fn output(self, reply: &[u8]) -> Result<()> {
        if !self.validate {
            return Ok(());
        }
        let found: u64 = reply_value(Self::NAME, reply)?;
        let (kind, at) = (found >> 32, u64::from(found as u32));
        let (argument, reason) = match kind {
            0 => return Ok(()),
            1 => ("cache_lens", format!("entry {at} is not from 0 to {} tokens", self.capacity())),
            2 => {
                let (sequence, page) = (at / self.max_pages.max(1), at % self.max_pages.max(1));
                (
                    "page_table",
                    format!("page {page} of sequence {sequence} is not one of the {} there are", self.num_pages),
                )
            }
            other => ("reply", format!("kind {other}")),
        };
        Err(GpuError::invalid(Self::NAME, argument, format!("{reason}; what was computed is not to be used")))
    }
}

/// The most parts of a sequence.
pub(crate) const MAX_SPLITS: u32 = 128;
