//! The CUDA half: one cuBLAS handle with its own workspace for each stream.

mod handle;
mod product;
mod scalar;
mod vector;

use std::collections::HashMap;
use std::sync::Arc;

use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{GpuError, Operation, Result};
use cudarc::cublas::sys;
use parking_lot::Mutex;

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Gemm, Gemv, LIBRARY, Nrm2, Scal, Swap};

use handle::Handle;

/// The library as NVIDIA names it.
pub(crate) const NAME: &str = "cuBLAS";

/// Makes the CUDA half, with the handle of the first stream, so that the first operation need not wait.
pub(crate) fn new(_setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    // SAFETY: it opens the shared library and closes it again; the constructors that cuBLAS runs
    // then are those of every later use.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::LibraryMissing {
            library: NAME.into(),
            searched: cudarc::get_lib_name_candidates("cublas"),
            reason: "install the CUDA toolkit, or put the folder of libcublas.so on LD_LIBRARY_PATH".into(),
        });
    }
    let first = Handle::new()?;
    let version = first.version()?;
    Ok(Box::new(CudaBlas { handles: Arc::new(Mutex::new(HashMap::from([(0, first)]))), version }))
}

struct CudaBlas {
    /// By stream. Shared with the side threads that make handles.
    handles: Arc<Mutex<HashMap<usize, Handle>>>,
    version: String,
}

impl CudaLibrary for CudaBlas {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        let stream = call.stream_index();
        let mut handles = self.handles.lock();
        let Some(handle) = handles.get_mut(&stream) else {
            let handles = Arc::clone(&self.handles);
            return Ok(call.later(move || {
                let handle = Handle::new()?;
                handles.lock().insert(stream, handle);
                Ok(())
            }));
        };
        handle.set_stream(call.stream())?;
        match call.code() {
            Gemm::CODE => product::gemm(handle, call),
            Gemv::CODE => product::gemv(handle, call),
            Axpy::CODE => vector::axpy(handle, call),
            Dot::CODE => vector::dot(handle, call),
            Nrm2::CODE => vector::nrm2(handle, call),
            Asum::CODE => vector::asum(handle, call),
            Scal::CODE => vector::scal(handle, call),
            Copy::CODE => vector::copy(handle, call),
            Swap::CODE => vector::swap(handle, call),
            Amax::CODE => vector::amax(handle, call),
            Amin::CODE => vector::amin(handle, call),
            code => Err(unknown_operation(LIBRARY, code)),
        }?;
        Ok(Step::Done)
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}
