//! Tensor maps: how the copy engine of compute capability 9.0 sees q, k, v and o.

use std::ffi::c_void;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{Operation, Result};
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};

use crate::op::{Attention, Strides};

/// A tensor of 16-bit heads in device memory.
pub(super) struct Tensor {
    pub address: u64,
    /// Sequences; one where they are packed.
    pub batch: u64,
    /// Positions.
    pub rows: u64,
    pub heads: u64,
    pub head_dim: u64,
    pub strides: Strides,
}

impl Tensor {
    /// The map of tiles of `box_rows` positions of one head, as `forward_sm90.cu` wants it
    /// (`cuTensorMapEncodeTiled`): atoms of 64 columns, 128-byte swizzle, zeros past the end.
    pub fn map(&self, bf16: bool, box_rows: u32) -> Result<CUtensorMap> {
        let dtype = match bf16 {
            true => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            false => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        };
        // A dimension of one element may have any stride, but not one that the driver refuses.
        let stride = |count: u64, elements: u64| if count > 1 { 2 * elements } else { 16 };
        let atoms = self.head_dim / 64;
        // A map of no rows is refused; the one row is never read.
        let dimensions = [64, self.rows.max(1), atoms, self.heads, self.batch];
        let strides = [
            stride(self.rows, self.strides.seq),
            128,
            stride(self.heads, self.strides.head),
            stride(self.batch, self.strides.batch),
        ];
        let (tile, steps) = ([64, box_rows, atoms as u32, 1, 1], [1u32; 5]);
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have the rank that is given (strides one less) and, as the map, outlive
        // the call; the address is only noted.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                dimensions.len() as u32,
                self.address as *mut c_void,
                dimensions.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check_driver(&format!("cuTensorMapEncodeTiled ({})", Attention::NAME), status)?;
        Ok(map)
    }
}
