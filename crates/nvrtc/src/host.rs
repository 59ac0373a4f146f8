//! The host half: CUDA C++ runs on a GPU, and it says so.

use atomr_cuda_core::executor::{HostCall, HostLibrary, HostSetup, Step};
use atomr_cuda_core::{GpuError, Result};

use crate::op::OPERATIONS;

/// Makes the host half of one stream.
pub(crate) fn new(_setup: &HostSetup) -> Result<Box<dyn HostLibrary>> {
    Ok(Box::new(HostNvrtc))
}

struct HostNvrtc;

impl HostLibrary for HostNvrtc {
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step> {
        let name = OPERATIONS.iter().find(|(code, _)| *code == call.code()).map_or("nvrtc", |(_, name)| name);
        Err(GpuError::Unsupported {
            operation: name.into(),
            executor: "host".into(),
            reason: "CUDA C++ runs on a GPU only".into(),
        })
    }
}
