//! The handle of one stream, its workspace, and statuses as errors.

use std::ptr;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{GpuError, Result};
use cudarc::cublas::sys::{self, cublasHandle_t, cublasPointerMode_t, cublasStatus_t};
use cudarc::driver::sys::{CUdeviceptr, CUstream, cuMemAlloc_v2, cuMemFree_v2};

use super::NAME;

/// NVIDIA's recommendation for Hopper; cuBLAS would else allocate behind our back.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A cuBLAS handle, bound to one stream at a time.
pub(super) struct Handle {
    raw: cublasHandle_t,
    workspace: CUdeviceptr,
    stream: CUstream,
    pointer_mode: cublasPointerMode_t,
}

// SAFETY: a handle may be used by any thread whose current context is the one it was made in, one
// thread at a time; it is only reached through a mutex or by its one owner.
unsafe impl Send for Handle {}

impl Handle {
    /// A handle in the current context; takes some hundred milliseconds the first time.
    pub fn new() -> Result<Self> {
        let mut handle = Handle {
            raw: ptr::null_mut(),
            workspace: 0,
            stream: ptr::null_mut(),
            pointer_mode: cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST,
        };
        // SAFETY: the place that is written outlives the call; `new` of the library has seen the
        // shared library load.
        check("cublasCreate_v2", unsafe { sys::cublasCreate_v2(&mut handle.raw) })?;
        // SAFETY: the place that is written outlives the call; a context is current.
        check_driver("cuMemAlloc_v2", unsafe { cuMemAlloc_v2(&mut handle.workspace, WORKSPACE_BYTES) })?;
        Ok(handle)
    }

    /// The library's version, as `13.1.0`.
    pub fn version(&self) -> Result<String> {
        let mut version = 0;
        // SAFETY: `raw` is a live handle and the place that is written outlives the call.
        check("cublasGetVersion_v2", unsafe { sys::cublasGetVersion_v2(self.raw, &mut version) })?;
        Ok(format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100))
    }

    /// Binds the handle to `stream`. cuBLAS forgets the workspace with every change.
    pub fn set_stream(&mut self, stream: CUstream) -> Result<()> {
        if self.stream == stream {
            return Ok(());
        }
        // SAFETY: `raw` is a live handle and `stream` a live stream of the same context.
        check("cublasSetStream_v2", unsafe { sys::cublasSetStream_v2(self.raw, stream.cast()) })?;
        // SAFETY: the workspace is device memory of this size, 256-byte aligned as all that
        // `cuMemAlloc` gives, and is freed only after the handle.
        let status =
            unsafe { sys::cublasSetWorkspace_v2(self.raw, self.workspace as *mut std::ffi::c_void, WORKSPACE_BYTES) };
        check("cublasSetWorkspace_v2", status)?;
        self.stream = stream;
        Ok(())
    }

    /// Scalars are read from the host from now on.
    pub fn scalars_from_host(&mut self) -> Result<cublasHandle_t> {
        self.set_pointer_mode(cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST)
    }

    /// Results are written to device addresses from now on, so that no call waits.
    pub fn results_to_device(&mut self) -> Result<cublasHandle_t> {
        self.set_pointer_mode(cublasPointerMode_t::CUBLAS_POINTER_MODE_DEVICE)
    }

    fn set_pointer_mode(&mut self, mode: cublasPointerMode_t) -> Result<cublasHandle_t> {
        if self.pointer_mode != mode {
            // SAFETY: `raw` is a live handle.
            check("cublasSetPointerMode_v2", unsafe { sys::cublasSetPointerMode_v2(self.raw, mode) })?;
            self.pointer_mode = mode;
        }
        Ok(self.raw)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A context that is lost answers with errors; there is nothing left to free then.
        if !self.raw.is_null() {
            // SAFETY: `raw` is a live handle that nothing uses afterwards.
            let _ = unsafe { sys::cublasDestroy_v2(self.raw) };
        }
        if self.workspace != 0 {
            // SAFETY: the workspace was allocated in `new`; its handle is gone, and freeing waits
            // for the work that uses it.
            let _ = unsafe { cuMemFree_v2(self.workspace) };
        }
    }
}

/// A status of cuBLAS as a result.
pub(super) fn check(function: &str, status: cublasStatus_t) -> Result<()> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(GpuError::Library {
        library: NAME.into(),
        function: function.into(),
        code: status as i64,
        status: format!("{status:?}"),
    })
}
