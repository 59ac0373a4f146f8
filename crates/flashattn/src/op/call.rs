//! The calls that this library gives a device, and their options.

use atomr_cuda_core::{Call, Device, GpuRef};

use super::attention::{Attention, Kernels, Packed, Window};
use super::decode::Decode;
use super::layout::Strides;
use super::plan::{PlanQuery, Planned};
use super::{HalfElement, Shape};

/// The calls of FlashAttention on a [`Device`].
pub trait AttentionCall {
    /// `o = softmax(scale * q k^T + mask) v`, exactly, without ever storing the scores
    /// (FlashAttention-2, arXiv 2307.08691; FlashAttention-3, arXiv 2407.08608).
    ///
    /// q and o are `[batch, seq_q, heads_q, head_dim]`, k and v `[batch, seq_k, heads_kv, head_dim]`,
    /// dense unless [`q_strides`](AttentionOptions::q_strides) and the like say otherwise; products
    /// and sums are kept in f32. [`shape`](AttentionOptions::shape) and [`heads`](MaskOptions::heads)
    /// must be given. A query that sees no key gives zeros (and minus infinity in
    /// [`lse`](AttentionOptions::lse)). Forward only.
    fn attention<T: HalfElement>(&self, q: &GpuRef<T>, k: &GpuRef<T>, v: &GpuRef<T>, o: &GpuRef<T>) -> Call<Attention>;

    /// Attention of the newest positions of each sequence against a paged cache of its keys and
    /// values, split over the device where sequences are few (Flash-Decoding; PagedAttention, arXiv
    /// 2309.06180).
    ///
    /// q and o are `[batch, seq_q, heads_q, head_dim]`, the caches `[num_pages, page_size, heads_kv,
    /// head_dim]`. [`shape`](DecodeOptions::shape), [`heads`](MaskOptions::heads),
    /// [`cache`](DecodeOptions::cache) and [`pages`](DecodeOptions::pages) must be given.
    fn decode_attention<T: HalfElement>(
        &self,
        q: &GpuRef<T>,
        k_cache: &GpuRef<T>,
        v_cache: &GpuRef<T>,
        o: &GpuRef<T>,
    ) -> Call<Decode>;

    /// Which kernel `call` takes on this device, compiled if need be.
    fn attention_plan(&self, call: &Call<Attention>) -> Call<PlanQuery>;

    /// Which kernel `call` takes on this device, compiled if need be, and in how many parts.
    fn decode_plan(&self, call: &Call<Decode>) -> Call<PlanQuery>;
}

impl AttentionCall for Device {
    fn attention<T: HalfElement>(&self, q: &GpuRef<T>, k: &GpuRef<T>, v: &GpuRef<T>, o: &GpuRef<T>) -> Call<Attention> {
        Call::new(self, Attention::default(), [q.view(), k.view(), v.view(), o.view()])
    }

    fn decode_attention<T: HalfElement>(
        &self,
        q: &GpuRef<T>,
        k_cache: &GpuRef<T>,
        v_cache: &GpuRef<T>,
        o: &GpuRef<T>,
    ) -> Call<Decode> {
        let operation = Decode { validate: true, ..Decode::default() };
        Call::new(self, operation, [q.view(), k_cache.view(), v_cache.view(), o.view()])
    }

    fn attention_plan(&self, call: &Call<Attention>) -> Call<PlanQuery> {
        let dtype = call.buffers().first().map(|q| q.dtype());
        Call::new(self, PlanQuery { planned: Planned::Attention(call.operation), dtype }, [])
    }

    fn decode_plan(&self, call: &Call<Decode>) -> Call<PlanQuery> {
        let dtype = call.buffers().first().map(|q| q.dtype());
        Call::new(self, PlanQuery { planned: Planned::Decode(call.operation), dtype }, [])
    }
}

/// Options that both calls have.
pub trait MaskOptions: Sized {
    #[doc(hidden)]
    fn map_shape(self, change: impl FnOnce(Shape) -> Shape) -> Self;

    /// Query heads, and the key heads that they share in equal groups: equal numbers are multi-head
    /// attention, one key head is MQA, a divisor GQA. Must be given.
    fn heads(self, heads_q: usize, heads_kv: usize) -> Self {
        self.map_shape(|shape| Shape { heads_q: heads_q as u64, heads_kv: heads_kv as u64, ..shape })
    }

    /// Factor of the scores; without it `1 / sqrt(head_dim)`. Above zero.
    fn scale(self, scale: f32) -> Self {
        self.map_shape(|shape| Shape { scale: Some(scale), ..shape })
    }

    /// Scores become `softcap * tanh(scale * q k^T / softcap)`. Above zero.
    fn softcap(self, softcap: f32) -> Self {
        self.map_shape(|shape| Shape { softcap: Some(softcap), ..shape })
    }
}

impl MaskOptions for Call<Attention> {
    fn map_shape(self, change: impl FnOnce(Shape) -> Shape) -> Self {
        self.map(|op| Attention { shape: change(op.shape), ..op })
    }
}

impl MaskOptions for Call<Decode> {
    fn map_shape(self, change: impl FnOnce(Shape) -> Shape) -> Self {
        self.map(|op| Decode { shape: change(op.shape), ..op })
    }
}

/// Options of [`attention`](AttentionCall::attention).
pub trait AttentionOptions: Sized {
    /// Sequences, queries and keys of each, and elements of a head (64, 128 or 256). Must be given.
    /// With [`packed`](AttentionOptions::packed), queries and keys are those of the longest sequence.
    fn shape(self, batch: usize, seq_q: usize, seq_k: usize, head_dim: usize) -> Self;
    /// Query i sees keys up to `i + seq_k - seq_q`: the last query sees all.
    fn causal(self) -> Self;
    /// Query i sees keys from `i + d - left` to `i + d + right`, with `d = seq_k - seq_q`; `None`: no
    /// limit on that side. With [`causal`](AttentionOptions::causal) both hold.
    fn window(self, left: impl Into<Option<u32>>, right: impl Into<Option<u32>>) -> Self;
    /// Writes the natural logarithm of the sum of the exponentials of each row's scores, f32
    /// `[batch, heads_q, seq_q]`; where packed, `[heads_q, total_q]`.
    fn lse(self, lse: &GpuRef<f32>) -> Self;
    /// Sequences of different lengths, one behind the other: q and o are `[total_q, heads_q,
    /// head_dim]`, k and v `[total_k, heads_kv, head_dim]`. Sequence i has rows `cu_seqlens[i]` to
    /// `cu_seqlens[i + 1]`, of q and of k. The totals are `rows`; rows past the last sequence are
    /// left as they are. Lengths are looked at on the device: what does not fit is a
    /// [`GpuError::InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) when the operation
    /// has finished, and nothing is computed then.
    fn packed(self, cu_seqlens_q: &GpuRef<i32>, cu_seqlens_k: &GpuRef<i32>, rows: (usize, usize)) -> Self;
    /// Lengths that do not fit are not reported (nothing is computed, as before). There is no reply
    /// then, as operations in a graph need.
    fn unreported(self) -> Self;
    /// Which family of kernels; without it, the fastest that the device has.
    fn kernels(self, kernels: Kernels) -> Self;
    /// Where the elements of q lie.
    fn q_strides(self, strides: Strides) -> Self;
    /// Where the elements of k lie.
    fn k_strides(self, strides: Strides) -> Self;
    /// Where the elements of v lie.
    fn v_strides(self, strides: Strides) -> Self;
    /// Where the elements of o lie. Those between them are left as they are.
    fn o_strides(self, strides: Strides) -> Self;
}

fn strided(call: Call<Attention>, at: usize, strides: Strides) -> Call<Attention> {
    call.map(|mut op| {
        op.strides[at] = Some(strides);
        op
    })
}

impl AttentionOptions for Call<Attention> {
    fn shape(self, batch: usize, seq_q: usize, seq_k: usize, head_dim: usize) -> Self {
        let sizes = |shape| Shape { batch: batch as u64, head_dim: head_dim as u64, ..shape };
        self.map(|op| Attention { shape: sizes(op.shape), seq_q: seq_q as u64, seq_k: seq_k as u64, ..op })
    }

    fn causal(self) -> Self {
        self.map(|op| Attention { causal: true, ..op })
    }

    fn window(self, left: impl Into<Option<u32>>, right: impl Into<Option<u32>>) -> Self {
        self.map(|op| Attention { window: Window { left: left.into(), right: right.into() }, ..op })
    }

    fn lse(self, lse: &GpuRef<f32>) -> Self {
        let at = self.buffers().len() as u8;
        self.with_buffer(lse.view()).map(|op| Attention { lse: Some(at), ..op })
    }

    fn packed(self, cu_seqlens_q: &GpuRef<i32>, cu_seqlens_k: &GpuRef<i32>, rows: (usize, usize)) -> Self {
        let at = self.buffers().len() as u8;
        let packed = Packed { total_q: rows.0 as u64, total_k: rows.1 as u64, at, validate: true };
        self.with_buffer(cu_seqlens_q.view())
            .with_buffer(cu_seqlens_k.view())
            .map(|op| Attention { packed: Some(packed), ..op })
    }

    fn unreported(self) -> Self {
        self.map(|op| Attention { packed: op.packed.map(|packed| Packed { validate: false, ..packed }), ..op })
    }

    fn kernels(self, kernels: Kernels) -> Self {
        self.map(|op| Attention { kernels, ..op })
    }

    fn q_strides(self, strides: Strides) -> Self {
        strided(self, 0, strides)
    }

    fn k_strides(self, strides: Strides) -> Self {
        strided(self, 1, strides)
    }

    fn v_strides(self, strides: Strides) -> Self {
        strided(self, 2, strides)
    }

    fn o_strides(self, strides: Strides) -> Self {
        strided(self, 3, strides)
    }
}

/// Options of [`decode_attention`](AttentionCall::decode_attention).
pub trait DecodeOptions: Sized {
    /// Sequences, queries of each (the newest tokens, already in the cache), and elements of a head
    /// (64, 128 or 256). Must be given.
    fn shape(self, batch: usize, seq_q: usize, head_dim: usize) -> Self;
    /// Pages of the caches, and tokens of a page: a power of two, 16 or more. Must be given.
    fn cache(self, num_pages: usize, page_size: usize) -> Self;
    /// Which pages each sequence has, i32 `[batch, max_pages]`, and how many tokens, i32 `[batch]`,
    /// those of q included. Must be given. They are looked at on the device: what does not fit is a
    /// [`GpuError::InvalidArgument`](atomr_cuda_core::GpuError::InvalidArgument) when the operation
    /// has finished; no memory but the caches' is read in any case.
    fn pages(self, page_table: &GpuRef<i32>, cache_lens: &GpuRef<i32>, max_pages: usize) -> Self;
    /// Pages and lengths that do not fit are not reported. There is no reply then, as operations in
    /// a graph need, and one kernel less.
    fn unreported(self) -> Self;
    /// The longest sequence, in tokens, where it is known to be much shorter than its row of pages;
    /// decides only how the work is split.
    fn longest(self, tokens: usize) -> Self;
    /// A query sees this many keys before its own.
    fn window(self, left: u32) -> Self;
    /// Writes the natural logarithm of the sum of the exponentials of each row's scores, f32
    /// `[batch, heads_q, seq_q]`. After [`pages`](DecodeOptions::pages).
    fn lse(self, lse: &GpuRef<f32>) -> Self;
    /// Computes each sequence in so many parts, 1 to 128; without it, as many as fill the device.
    fn splits(self, splits: u32) -> Self;
    /// Where the elements of q lie.
    fn q_strides(self, strides: Strides) -> Self;
    /// Where the elements of the cache of k lie: `batch` from page to page, `seq` from token to token.
    fn k_strides(self, strides: Strides) -> Self;
    /// Where the elements of the cache of v lie.
    fn v_strides(self, strides: Strides) -> Self;
    /// Where the elements of o lie. Those between them are left as they are.
    fn o_strides(self, strides: Strides) -> Self;
}

fn strided_decode(call: Call<Decode>, at: usize, strides: Strides) -> Call<Decode> {
    call.map(|mut op| {
        op.strides[at] = Some(strides);
        op
    })
}

impl DecodeOptions for Call<Decode> {
    fn shape(self, batch: usize, seq_q: usize, head_dim: usize) -> Self {
        let sizes = |shape| Shape { batch: batch as u64, head_dim: head_dim as u64, ..shape };
        self.map(|op| Decode { shape: sizes(op.shape), seq_q: seq_q as u64, ..op })
    }

    fn cache(self, num_pages: usize, page_size: usize) -> Self {
        self.map(|op| Decode { num_pages: num_pages as u64, page_size: page_size as u64, ..op })
    }

    fn pages(self, page_table: &GpuRef<i32>, cache_lens: &GpuRef<i32>, max_pages: usize) -> Self {
        self.with_buffer(page_table.view())
            .with_buffer(cache_lens.view())
            .map(|op| Decode { max_pages: max_pages as u64, ..op })
    }

    fn unreported(self) -> Self {
        self.map(|op| Decode { validate: false, ..op })
    }

    fn longest(self, tokens: usize) -> Self {
        self.map(|op| Decode { longest: Some(tokens as u64), ..op })
    }

    fn window(self, left: u32) -> Self {
        self.map(|op| Decode { window: Some(left), ..op })
    }

    fn lse(self, lse: &GpuRef<f32>) -> Self {
        self.with_buffer(lse.view()).map(|op| Decode { lse: true, ..op })
    }

    fn splits(self, splits: u32) -> Self {
        self.map(|op| Decode { splits: Some(splits), ..op })
    }

    fn q_strides(self, strides: Strides) -> Self {
        strided_decode(self, 0, strides)
    }

    fn k_strides(self, strides: Strides) -> Self {
        strided_decode(self, 1, strides)
    }

    fn v_strides(self, strides: Strides) -> Self {
        strided_decode(self, 2, strides)
    }

    fn o_strides(self, strides: Strides) -> Self {
        strided_decode(self, 3, strides)
    }
}
