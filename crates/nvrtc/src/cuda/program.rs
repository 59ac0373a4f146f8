//! A program in this context: its kernels, ready to be launched.

use atomr_cuda_core::{GpuError, Operation, Result};

use crate::compiler::{Compiled, Module, Resources};
use crate::op::{Built, DeviceLimits, KernelInfo, Launch, ProgramKey, key_of};

use super::module::Kernel;

/// The part of shared memory that the system takes from each block, which some drivers count as static.
const SYSTEM_SHARED: u32 = 1024;

/// The kernels of one program, in the order of their names, which is the same in every worker.
pub(super) struct LoadedProgram {
    kernels: Vec<LoadedKernel>,
}

struct LoadedKernel {
    name: String,
    kernel: Kernel,
    max_dynamic_shared: u32,
}

impl LoadedProgram {
    /// Loads machine code; from a side task. `key` is checked, lest damaged code is run.
    pub fn load(cubin: &[u8], key: &ProgramKey, limits: &DeviceLimits) -> Result<Self> {
        if key_of(cubin) != *key {
            let reason = "its machine code was overwritten; compile it again";
            return Err(GpuError::invalid(Launch::NAME, "program", reason));
        }
        let kernels = Module::load_cubin(cubin)?.kernels()?;
        let kernels = kernels.into_iter().map(|(name, kernel)| {
            if limits.clusters {
                kernel.allow_large_clusters()?;
            }
            let max_dynamic_shared = raise_dynamic_shared(&kernel, limits)?;
            Ok(LoadedKernel { name, kernel, max_dynamic_shared })
        });
        Ok(LoadedProgram { kernels: kernels.collect::<Result<_>>()? })
    }

    pub fn kernel(&self, index: u32) -> Result<&Kernel> {
        match self.kernels.get(index as usize) {
            Some(loaded) => Ok(&loaded.kernel),
            None => Err(GpuError::invalid(Launch::NAME, "kernel", format!("the program has no kernel number {index}"))),
        }
    }

    /// What the front is told.
    pub fn describe(&self, compiled: &Compiled, limits: &DeviceLimits) -> Built {
        let reported = |name: &str| compiled.resources().iter().find(|it| it.kernel == name).cloned();
        let kernels = self.kernels.iter().map(|loaded| KernelInfo {
            name: loaded.name.clone(),
            attributes: loaded.kernel.attributes().clone(),
            resources: reported(&loaded.name).unwrap_or_else(|| Resources {
                kernel: loaded.name.clone(),
                registers: loaded.kernel.attributes().registers,
                ..Resources::default()
            }),
            max_dynamic_shared: loaded.max_dynamic_shared,
        });
        Built {
            architecture: compiled.architecture(),
            lowered: compiled.lowered.clone(),
            log: compiled.log().to_string(),
            took: compiled.took(),
            from_cache: compiled.from_cache(),
            kernels: kernels.collect(),
            limits: *limits,
        }
    }
}

/// Lets the kernel have all the shared memory there is beside its own; gives the bytes.
fn raise_dynamic_shared(kernel: &Kernel, limits: &DeviceLimits) -> Result<u32> {
    let fixed = kernel.attributes().static_shared;
    let without_system = limits.max_shared.saturating_sub(fixed.saturating_sub(SYSTEM_SHARED));
    if kernel.set_max_dynamic_shared(without_system).is_ok() {
        return Ok(without_system);
    }
    let bytes = limits.max_shared.saturating_sub(fixed);
    kernel.set_max_dynamic_shared(bytes)?;
    Ok(bytes)
}
