//! Temporary device memory for library calls, from the driver's stream-ordered pool.

use cudarc::driver::sys::{self, CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream};

use crate::error::{GpuError, Result};

use super::driver::check_driver;

/// Allocates for one call at a time; [`Scratch::release`] gives everything back, in stream order.
pub struct Scratch {
    pool: CUmemoryPool,
    taken: Vec<(CUstream, CUdeviceptr)>,
}

impl Scratch {
    /// The pool of `device`, told to keep what it has.
    pub(crate) fn new(device: i32) -> Result<Self> {
        let mut pool = std::ptr::null_mut();
        // SAFETY: the place that is written outlives the call.
        check_driver("cuDeviceGetDefaultMemPool", unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, device) })?;
        let mut threshold = u64::MAX;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit value, as given.
        let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) };
        check_driver("cuMemPoolSetAttribute", status)?;
        Ok(Scratch { pool, taken: Vec::new() })
    }

    /// At least `bytes`, 256-byte aligned, valid for work on `stream` until the call's end.
    pub(crate) fn get(&mut self, stream: CUstream, bytes: u64) -> Result<CUdeviceptr> {
        let mut ptr = 0;
        // SAFETY: the place that is written outlives the call; the stream is alive.
        let mut allocate = || unsafe { sys::cuMemAllocAsync(&mut ptr, bytes.max(1) as usize, stream) };
        let mut status = allocate();
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            // SAFETY: the pool belongs to a live device.
            check_driver("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(self.pool, 0) })?;
            status = allocate();
        }
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = memory_info()?;
            return Err(GpuError::OutOfMemory { requested: bytes, free, total, limited: false });
        }
        check_driver("cuMemAllocAsync", status)?;
        self.taken.push((stream, ptr));
        Ok(ptr)
    }

    /// Forgets what was taken in a capture that was given up: nothing was allocated.
    pub(crate) fn forget(&mut self) {
        self.taken.clear();
    }

    /// Gives back what the call took.
    pub(crate) fn release(&mut self) -> Result<()> {
        for (stream, ptr) in self.taken.drain(..) {
            // SAFETY: allocated by `get` on this stream and not freed since.
            check_driver("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(ptr, stream) })?;
        }
        Ok(())
    }
}

/// Free and total bytes of the current context's device.
pub(super) fn memory_info() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the places that are written outlive the call.
    check_driver("cuMemGetInfo_v2", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok((free as u64, total as u64))
}
