//! The counters that blocks of the persistent kernel draw tiles from.

use atomr_cuda_core::Result;
use atomr_cuda_core::executor::cuda::check_driver;
use cudarc::driver::sys::{self, CUdeviceptr};

/// Streams have numbers of eight bits.
const STREAMS: usize = 256;
/// Bytes between the counters of two streams: a cache line.
const LINE: usize = 128;

/// Two words a stream, zero before and after each launch.
pub(super) struct Schedulers(CUdeviceptr);

impl Schedulers {
    /// In the current context.
    pub fn new() -> Result<Self> {
        let mut memory = 0;
        // SAFETY: the place that is written outlives the call; a context is current.
        check_driver("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&mut memory, STREAMS * LINE) })?;
        let schedulers = Schedulers(memory);
        // SAFETY: the range was just allocated; nothing else uses it yet.
        check_driver("cuMemsetD8_v2", unsafe { sys::cuMemsetD8_v2(memory, 0, STREAMS * LINE) })?;
        Ok(schedulers)
    }

    pub fn of_stream(&self, index: usize) -> CUdeviceptr {
        self.0 + (index % STREAMS * LINE) as u64
    }
}

impl Drop for Schedulers {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once; freeing waits for the work that uses it.
        let _ = unsafe { sys::cuMemFree_v2(self.0) };
    }
}
