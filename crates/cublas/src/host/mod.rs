//! The host half: matrix products on the `gemm` crate, vector operations as loops.

mod element;
mod matrix;
mod product;
mod vector;

use atomr_cuda_core::executor::{HostCall, HostLibrary, HostSetup, Step, unknown_operation};
use atomr_cuda_core::{GpuError, Operation, Result};

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Gemm, Gemv, LIBRARY, Nrm2, Scal, Swap};

use element::with_element;

/// Makes the host half of one stream.
pub(crate) fn new(setup: &HostSetup) -> Result<Box<dyn HostLibrary>> {
    Ok(Box::new(HostBlas { threads: setup.threads }))
}

struct HostBlas {
    threads: usize,
}

impl HostLibrary for HostBlas {
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step> {
        let dtype = call.dtype(0)?;
        match call.code() {
            Gemm::CODE => with_element!(dtype, T => product::gemm::<T>(call, self.threads)),
            Gemv::CODE => with_element!(dtype, T => product::gemv::<T>(call, self.threads)),
            Axpy::CODE => with_element!(dtype, T => vector::axpy::<T>(call)),
            Dot::CODE => with_element!(dtype, T => vector::dot::<T>(call)),
            Nrm2::CODE => with_element!(dtype, T => vector::nrm2::<T>(call)),
            Asum::CODE => with_element!(dtype, T => vector::asum::<T>(call)),
            Scal::CODE => with_element!(dtype, T => vector::scal::<T>(call)),
            Copy::CODE => with_element!(dtype, T => vector::copy::<T>(call)),
            Swap::CODE => with_element!(dtype, T => vector::swap::<T>(call)),
            Amax::CODE => with_element!(dtype, T => vector::amax::<T>(call)),
            Amin::CODE => with_element!(dtype, T => vector::amin::<T>(call)),
            code => Err(unknown_operation(LIBRARY, code)),
        }?;
        Ok(Step::Done)
    }
}

/// Sizes that the front's checks rule out.
fn violation(operation: &str, argument: &str) -> GpuError {
    GpuError::Protocol { side: "front".into(), reason: format!("{operation}: `{argument}` does not fit its buffer") }
}
