//! The CUDA half: one cuBLAS handle with its own workspace for each stream.

mod handle;
mod product;
mod scalar;
mod vector;

use atomr_cuda_core::executor::cuda::{PerStream, require_library};
use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{Operation, Result};
use cudarc::cublas::sys;

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Gemm, Gemv, LIBRARY, Nrm2, Scal, Swap};

use handle::Handle;

/// The library as NVIDIA names it.
pub(crate) const NAME: &str = "cuBLAS";

/// Makes the CUDA half, with the handle of the first stream, so that the first operation need not wait.
pub(crate) fn new(_setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    // SAFETY: it opens the shared library and closes it again; the constructors that cuBLAS runs
    // then are those of every later use.
    require_library(NAME, "cublas", unsafe { sys::is_culib_present() })?;
    let first = Handle::new()?;
    let version = first.version()?;
    Ok(Box::new(CudaBlas { handles: PerStream::new(first, Handle::new), version }))
}

struct CudaBlas {
    handles: PerStream<Handle>,
    version: String,
}

impl CudaLibrary for CudaBlas {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        self.handles.with(call, |handle, call| {
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
        })
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}
