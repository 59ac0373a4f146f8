//! Launches of the forward kernels.

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{Operation, Result};
use cudarc::driver::sys::CUtensorMap;

use crate::op::{Attention, Window};

use super::loaded::{Loaded, at, launch};
use super::tensor_map::Tensor;
use super::variant::{Family, Variant};
use super::{CudaAttention, aligned};

/// Bytes of keys and values that the heads whose tiles run together may have: what the L2 cache keeps.
const SECTION_BYTES: u64 = 32 << 20;

/// `AttentionParams` of `forward_sm90.cu`.
#[repr(C)]
struct WgmmaParams {
    out: u64,
    lse: u64,
    cu_seqlens_q: u64,
    cu_seqlens_k: u64,
    scheduler: u64,
    out_strides: [i64; 3],
    batch: i32,
    heads_q: i32,
    heads_kv: i32,
    seq_q: i32,
    seq_k: i32,
    scale: f32,
    softcap: f32,
    window_left: i32,
    window_right: i32,
    heads_per_section: i32,
}

/// `AttentionParams` of `forward_mma.cu`.
#[repr(C)]
struct MmaParams {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    lse: u64,
    cu_seqlens_q: u64,
    cu_seqlens_k: u64,
    strides: [[i64; 3]; 4],
    batch: i32,
    heads_q: i32,
    heads_kv: i32,
    seq_q: i32,
    seq_k: i32,
    total_q: i32,
    window_left: i32,
    window_right: i32,
    scale: f32,
    softcap: f32,
    heads_per_section: i32,
}

/// What both families need.
struct Launch {
    buffers: [u64; 4],
    lse: u64,
    lengths: [u64; 2],
    sections: i32,
    tiles: u32,
}

impl CudaAttention {
    pub(super) fn forward(
        &self,
        op: &Attention,
        variant: &Variant,
        loaded: &Loaded,
        call: &mut CudaCall<'_>,
    ) -> Result<()> {
        let lengths = self.lengths(op, loaded, call)?;
        let tiles = op.seq_q.div_ceil(loaded.tiles.m.into()) * op.shape.batch * op.shape.heads_q;
        if tiles == 0 {
            return Ok(());
        }
        let heads = op.shape.batch * op.shape.heads_q;
        let section = match op.causal || op.windowed() {
            true => (SECTION_BYTES / (4 * op.seq_k * op.shape.head_dim).max(1)).max(1) * op.shape.group(),
            false => 1,
        };
        let names = ["q", "k", "v", "o"];
        let mut buffers = [0; 4];
        for (index, buffer) in buffers.iter_mut().enumerate() {
            *buffer = aligned(Attention::NAME, names[index], call, index)?;
        }
        let launch = Launch {
            buffers,
            lse: op.lse.map_or(Ok(0), |at| call.ptr(at.into()))?,
            lengths,
            sections: section.min(heads) as i32,
            tiles: tiles as u32,
        };
        match variant.family {
            Family::Wgmma => self.forward_wgmma(op, variant, loaded, &launch, call),
            _ => self.forward_mma(op, loaded, &launch, call),
        }
    }

    /// Where the lengths of packed sequences lie that the kernel may trust.
    fn lengths(&self, op: &Attention, loaded: &Loaded, call: &mut CudaCall<'_>) -> Result<[u64; 2]> {
        let (Some(packed), Some(inspection)) = (op.packed, &loaded.inspection) else { return Ok([0; 2]) };
        let given = [call.ptr(packed.at.into())?, call.ptr(usize::from(packed.at) + 1)?];
        let bytes = (op.shape.batch + 1).next_multiple_of(64) * 4;
        let first = call.scratch(2 * bytes)?;
        let safe = [first, first + bytes];
        let status = if packed.validate { call.reply_ptr()? } else { 0 };
        let sizes = [op.shape.batch, packed.total_q, packed.total_k, op.seq_q, op.seq_k].map(|size| size as i32);
        let arguments = [
            at(&given[0]),
            at(&given[1]),
            at(&safe[0]),
            at(&safe[1]),
            at(&status),
            at(&sizes[0]),
            at(&sizes[1]),
            at(&sizes[2]),
            at(&sizes[3]),
            at(&sizes[4]),
        ];
        // SAFETY: the parameters of `attention_inspect_lengths`; `Attention::check` has seen that both
        // lists have batch + 1 entries, as the scratch has, and the reply slot holds the status.
        unsafe { launch(inspection, [1, 1, 1], 1024, 0, arguments, call) }?;
        Ok(safe)
    }

    fn forward_wgmma(
        &self,
        op: &Attention,
        variant: &Variant,
        loaded: &Loaded,
        from: &Launch,
        call: &mut CudaCall<'_>,
    ) -> Result<()> {
        let strides = op.strides();
        let (queries, keys) = op.extents();
        let map = |index: usize, box_rows: u32| -> Result<CUtensorMap> {
            let extents = if matches!(index, 1 | 2) { keys } else { queries };
            let tensor = Tensor {
                address: from.buffers[index],
                batch: extents.batch,
                rows: extents.seq,
                heads: extents.heads,
                head_dim: extents.head_dim,
                strides: strides[index],
            };
            tensor.map(variant.bf16, box_rows)
        };
        let maps = [map(0, 64)?, map(1, loaded.tiles.n)?, map(2, loaded.tiles.n)?, map(3, 64)?];
        let uneven = op.causal || op.windowed() || op.packed.is_some();
        let (window_left, window_right) = window(op.window);
        let params = WgmmaParams {
            out: from.buffers[3],
            lse: from.lse,
            cu_seqlens_q: from.lengths[0],
            cu_seqlens_k: from.lengths[1],
            scheduler: if uneven { self.schedulers.of_stream(call.stream_index()) } else { 0 },
            out_strides: elements(strides[3]),
            batch: op.shape.batch as i32,
            heads_q: op.shape.heads_q as i32,
            heads_kv: op.shape.heads_kv as i32,
            seq_q: op.seq_q as i32,
            seq_k: op.seq_k as i32,
            scale: op.shape.scale(),
            softcap: op.shape.softcap.unwrap_or(0.0),
            window_left,
            window_right,
            heads_per_section: from.sections,
        };
        let arguments = [at(&maps[0]), at(&maps[1]), at(&maps[2]), at(&maps[3]), at(&params)];
        let grid = [from.tiles.min(self.multiprocessors), 1, 1];
        // SAFETY: the parameters of `attention_forward_sm90`, with the layout that it declares; the
        // maps clip what is read and written to the tensors, which `Attention::check` has compared
        // with the buffers, and the lengths of packed sequences were inspected.
        unsafe { launch(&loaded.main, grid, loaded.tiles.threads, loaded.tiles.shared_bytes, arguments, call) }
    }

    fn forward_mma(&self, op: &Attention, loaded: &Loaded, from: &Launch, call: &mut CudaCall<'_>) -> Result<()> {
        let [q, k, v, o] = from.buffers;
        let (window_left, window_right) = window(op.window);
        let params = MmaParams {
            q,
            k,
            v,
            o,
            lse: from.lse,
            cu_seqlens_q: from.lengths[0],
            cu_seqlens_k: from.lengths[1],
            strides: op.strides().map(elements),
            batch: op.shape.batch as i32,
            heads_q: op.shape.heads_q as i32,
            heads_kv: op.shape.heads_kv as i32,
            seq_q: op.seq_q as i32,
            seq_k: op.seq_k as i32,
            total_q: op.packed.map_or(0, |packed| packed.total_q as i32),
            window_left,
            window_right,
            scale: op.shape.scale(),
            softcap: op.shape.softcap.unwrap_or(0.0),
            heads_per_section: from.sections,
        };
        let grid = [from.tiles, 1, 1];
        // SAFETY: the parameters of `attention_forward_mma`, with the layout that it declares;
        // `Attention::check` has compared sizes and strides with the buffers, and the lengths of
        // packed sequences were inspected.
        unsafe { launch(&loaded.main, grid, loaded.tiles.threads, loaded.tiles.shared_bytes, [at(&params)], call) }
    }
}

/// Batch, position and head, as the kernels take them.
pub(super) fn elements(strides: crate::op::Strides) -> [i64; 3] {
    [strides.batch as i64, strides.seq as i64, strides.head as i64]
}

/// Left and right limit; below zero there is none.
fn window(window: Window) -> (i32, i32) {
    let limit = |side: Option<u32>| side.map_or(-1, |keys| i32::try_from(keys).unwrap_or(i32::MAX));
    (limit(window.left), limit(window.right))
}
