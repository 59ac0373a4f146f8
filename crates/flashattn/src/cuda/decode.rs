//! Launches of the decode kernels.

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{Operation, Result};

use crate::op::{Decode, MAX_SPLITS};

use super::forward::elements;
use super::loaded::{Loaded, at, launch};
use super::variant::{DECODE_ROWS, DECODE_TILE};
use super::{CudaAttention, aligned};

/// `DecodeParams` of `decode.cu`.
#[repr(C)]
struct DecodeParams {
    q: u64,
    k_cache: u64,
    v_cache: u64,
    page_table: u64,
    cache_lens: u64,
    o: u64,
    lse: u64,
    partial_o: u64,
    partial_lse: u64,
    q_strides: [i64; 3],
    o_strides: [i64; 3],
    k_strides: [i64; 3],
    v_strides: [i64; 3],
    batch: i32,
    seq_q: i32,
    heads_q: i32,
    heads_kv: i32,
    page_shift: i32,
    max_pages: i32,
    num_pages: i32,
    num_splits: i32,
    split_tokens: i32,
    window_left: i32,
    scale: f32,
    softcap: f32,
}

/// Rows that a block of the combining kernel takes.
const COMBINE_ROWS: u64 = 4;
const COMBINE_THREADS: u32 = 128;

impl CudaAttention {
    pub(super) fn decode(&self, op: &Decode, loaded: &Loaded, call: &mut CudaCall<'_>) -> Result<()> {
        self.inspect_pages(op, loaded, call)?;
        let shape = &op.shape;
        let rows = shape.batch * op.seq_q * shape.heads_q;
        let (splits, split_tokens) = self.splits(op, loaded);
        let (mut partial_o, mut partial_lse) = (0, 0);
        if splits > 1 {
            let parts = rows * u64::from(splits);
            partial_o = call.scratch(parts * shape.head_dim * 4)?;
            partial_lse = call.scratch(parts * 4)?;
        }
        let [q, k, v, o] = op.strides().map(elements);
        let params = DecodeParams {
            q: aligned(Decode::NAME, "q", call, 0)?,
            k_cache: aligned(Decode::NAME, "k_cache", call, 1)?,
            v_cache: aligned(Decode::NAME, "v_cache", call, 2)?,
            page_table: call.ptr(4)?,
            cache_lens: call.ptr(5)?,
            o: aligned(Decode::NAME, "o", call, 3)?,
            lse: if op.lse { call.ptr(6)? } else { 0 },
            partial_o,
            partial_lse,
            q_strides: q,
            o_strides: o,
            k_strides: k,
            v_strides: v,
            batch: shape.batch as i32,
            seq_q: op.seq_q as i32,
            heads_q: shape.heads_q as i32,
            heads_kv: shape.heads_kv as i32,
            page_shift: op.page_size.trailing_zeros() as i32,
            max_pages: op.max_pages as i32,
            num_pages: op.num_pages as i32,
            num_splits: splits as i32,
            split_tokens: split_tokens as i32,
            window_left: op.window.map_or(-1, |left| i32::try_from(left).unwrap_or(i32::MAX)),
            scale: shape.scale(),
            softcap: shape.softcap.unwrap_or(0.0),
        };
        let row_tiles = (op.seq_q * shape.group()).div_ceil(DECODE_ROWS.into());
        let grid = [(shape.heads_kv * row_tiles) as u32, splits, shape.batch as u32];
        let tiles = &loaded.tiles;
        // SAFETY: the parameters of `attention_decode_split`, with the layout that it declares;
        // `Decode::check` has compared sizes and strides with the buffers, scratch holds a part of each
        // row for each split, and the kernel brings lengths and page numbers into bounds.
        unsafe { launch(&loaded.main, grid, tiles.threads, tiles.shared_bytes, [at(&params)], call) }?;
        let Some(combine) = loaded.combine.as_ref().filter(|_| splits > 1) else { return Ok(()) };
        let grid = [rows.div_ceil(COMBINE_ROWS) as u32, 1, 1];
        // SAFETY: as above; the kernel before has written all parts.
        unsafe { launch(combine, grid, COMBINE_THREADS, 0, [at(&params)], call) }
    }

    fn inspect_pages(&self, op: &Decode, loaded: &Loaded, call: &mut CudaCall<'_>) -> Result<()> {
        let Some(inspection) = loaded.inspection.as_ref().filter(|_| op.validate) else { return Ok(()) };
        let (page_table, cache_lens, status) = (call.ptr(4)?, call.ptr(5)?, call.reply_ptr()?);
        let sizes = [op.shape.batch, op.max_pages, u64::from(op.page_size.trailing_zeros()), op.num_pages]
            .map(|size| size as i32);
        let arguments =
            [at(&page_table), at(&cache_lens), at(&status), at(&sizes[0]), at(&sizes[1]), at(&sizes[2]), at(&sizes[3])];
        // SAFETY: the parameters of `attention_inspect_pages`; `Decode::check` has seen that there are
        // batch lengths and batch * max_pages page numbers, and the reply slot holds the status.
        unsafe { launch(inspection, [1, 1, 1], 1024, 0, arguments, call) }
    }

    /// Parts of a sequence and tokens of each: enough equal blocks to fill the last wave and no more,
    /// since each part costs a merge (`decode.cu` says how it was chosen).
    pub(super) fn splits(&self, op: &Decode, loaded: &Loaded) -> (u32, u64) {
        let seen = op.window.map_or(u64::MAX, |left| u64::from(left).saturating_add(op.seq_q));
        let tokens = op.longest.unwrap_or(u64::MAX).min(op.capacity()).min(seen).max(1);
        let row_tiles = (op.seq_q * op.shape.group()).div_ceil(DECODE_ROWS.into());
        let work = op.shape.batch * op.shape.heads_kv * row_tiles;
        let slots = u64::from(self.multiprocessors * loaded.blocks);
        split(work, slots, tokens, u64::from(loaded.tiles.warps * DECODE_TILE), op.splits)
    }
}

fn split(work: u64, slots: u64, tokens: u64, round: u64, asked: Option<u32>) -> (u32, u64) {
    let most = (tokens / (8 * round)).clamp(1, MAX_SPLITS.into());
    let fill = |splits: u64| {
        let waves = (work * splits) as f64 / slots.max(1) as f64;
        waves / waves.ceil().max(1.0)
    };
    let best = (1..=most).map(fill).fold(0.0, f64::max);
    let wanted = match asked {
        Some(splits) => u64::from(splits.clamp(1, MAX_SPLITS)),
        None => (1..=most).find(|splits| fill(*splits) >= 0.95 * best).unwrap_or(1),
    };
    let split_tokens = tokens.div_ceil(wanted).next_multiple_of(round);
    (tokens.div_ceil(split_tokens) as u32, split_tokens)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn splits_fill_the_device_and_cover_every_token() {
        assert_eq!(split(1000, 264, 100, 64, None), (1, 128), "too short to split");
        let (splits, tokens) = split(8, 264, 32768, 64, None);
        assert!(splits > 16 && u64::from(splits) * tokens >= 32768, "{splits} parts of {tokens}");
        for tokens in [1, 63, 64, 65, 1000, 32768, 1 << 28] {
            for work in [1, 7, 128, 5000] {
                for asked in [None, Some(1), Some(3), Some(128)] {
                    let (splits, of) = split(work, 264, tokens, 64, asked);
                    assert!(u64::from(splits) * of >= tokens && (1..=128).contains(&splits) && of % 64 == 0);
                }
            }
        }
    }
}
