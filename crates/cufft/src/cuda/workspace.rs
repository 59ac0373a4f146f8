//! Memory that transforms work in: one area a stream, shared by all plans, as large as the largest
//! needed so far.

use std::collections::HashMap;
use std::sync::Arc;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{GpuError, Result};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

/// Areas by the streams' numbers. Clones share them: side tasks make them larger.
#[derive(Clone, Default)]
pub(super) struct Workspaces {
    areas: Arc<parking_lot::Mutex<HashMap<usize, Area>>>,
}

struct Area {
    memory: CUdeviceptr,
    bytes: usize,
}

impl Workspaces {
    /// At least `bytes` for a stream, if there are as many already.
    pub fn get(&self, stream: usize, bytes: usize) -> Option<CUdeviceptr> {
        if bytes == 0 {
            return Some(0);
        }
        self.areas.lock().get(&stream).filter(|area| area.bytes >= bytes).map(|area| area.memory)
    }

    /// Makes the area of a stream large enough; for side tasks. The old one is freed when what runs
    /// in it has finished.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where there is no room, the driver's answer else.
    pub fn grow(&self, stream: usize, raw: CUstream, bytes: usize) -> Result<()> {
        let mut areas = self.areas.lock();
        if areas.get(&stream).is_some_and(|area| area.bytes >= bytes) {
            return Ok(());
        }
        // SAFETY: the stream lives as long as the executor, which this runs in.
        check_driver("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(raw) })?;
        areas.remove(&stream);
        let mut memory = 0;
        // SAFETY: the place that is written outlives the call; the context is current on side threads.
        let status = unsafe { sys::cuMemAlloc_v2(&mut memory, bytes) };
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the places that are written outlive the call.
            check_driver("cuMemGetInfo_v2", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
            let (free, total) = (free as u64, total as u64);
            return Err(GpuError::OutOfMemory { requested: bytes as u64, free, total, limited: false });
        }
        check_driver("cuMemAlloc_v2", status)?;
        areas.insert(stream, Area { memory, bytes });
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: allocated by `grow`, freed once; freeing waits for the work that uses it.
        let _ = unsafe { sys::cuMemFree_v2(self.memory) };
    }
}
