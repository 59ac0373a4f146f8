//! The CUDA half: kernels of our own, compiled by NVRTC for the device that is there.

mod decode;
mod forward;
mod loaded;
mod scheduler;
mod tensor_map;
pub(crate) mod variant;

use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{GpuError, Operation, Result};
use atomr_cuda_nvrtc::compiler::{Architecture, ModuleCache, version};

use crate::op::{Attention, AttentionPlan, Decode, LIBRARY, PlanQuery, Planned};

use loaded::Loaded;
use scheduler::Schedulers;
use variant::{Family, Variant};

/// Variants that are loaded at a time.
const VARIANTS: usize = 64;

/// Makes the CUDA half. Compiling is left to side tasks, since this runs on the enqueue thread.
pub(crate) fn new(setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    // Without NVRTC the library is reported as missing now, and not by its first operation.
    let (major, minor) = version()?;
    let capability = setup.compute_capability;
    Ok(Box::new(CudaAttention {
        device: Architecture::of(capability.0, capability.1)?,
        multiprocessors: u32::try_from(setup.multiprocessors).unwrap_or(1).max(1),
        variants: ModuleCache::new(VARIANTS),
        schedulers: Schedulers::new()?,
        version: format!("{} (NVRTC {major}.{minor})", env!("CARGO_PKG_VERSION")),
    }))
}

pub(crate) struct CudaAttention {
    device: Architecture,
    multiprocessors: u32,
    variants: ModuleCache<Variant, Loaded>,
    schedulers: Schedulers,
    version: String,
}

impl CudaLibrary for CudaAttention {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        match call.code() {
            Attention::CODE => {
                let op: Attention = call.params()?;
                let variant = Variant::of_attention(&op, call.dtype(0)?, self.device.capability())?;
                self.with(variant, call, |half, loaded, call| half.forward(&op, &variant, loaded, call))
            }
            Decode::CODE => {
                let op: Decode = call.params()?;
                let variant = Variant::of_decode(&op, call.dtype(0)?, self.device.capability())?;
                self.with(variant, call, |half, loaded, call| half.decode(&op, loaded, call))
            }
            PlanQuery::CODE => {
                let query: PlanQuery = call.params()?;
                let variant = self.planned(&query)?;
                self.with(variant, call, |half, loaded, call| half.plan(&query.planned, &variant, loaded, call))
            }
            code => Err(unknown_operation(LIBRARY, code)),
        }
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}

impl CudaAttention {
    /// Runs `work` with a variant, or has it compiled and loaded first.
    fn with(
        &self,
        variant: Variant,
        call: &mut CudaCall<'_>,
        work: impl FnOnce(&Self, &Loaded, &mut CudaCall<'_>) -> Result<()>,
    ) -> Result<Step> {
        let stream = call.stream();
        if self.variants.with(&variant, stream, |loaded| work(self, loaded, call))?.is_some() {
            return Ok(Step::Done);
        }
        let (variants, device) = (self.variants.clone(), self.device);
        Ok(call.later(move || variants.insert(variant, Loaded::load(&variant, device)?)))
    }

    fn planned(&self, query: &PlanQuery) -> Result<Variant> {
        let capability = self.device.capability();
        let dtype = query.dtype.ok_or_else(|| GpuError::invalid(PlanQuery::NAME, "q", "it has no element type"))?;
        match &query.planned {
            Planned::Attention(op) => Variant::of_attention(op, dtype, capability),
            Planned::Decode(op) => Variant::of_decode(op, dtype, capability),
        }
    }

    fn plan(&self, planned: &Planned, variant: &Variant, loaded: &Loaded, call: &mut CudaCall<'_>) -> Result<()> {
        let kernel = match variant.family {
            Family::Wgmma => "forward wgmma",
            Family::Mma => "forward mma.sync",
            Family::Decode => "decode mma.sync",
        };
        let splits = match planned {
            Planned::Attention(_) => 1,
            Planned::Decode(op) => self.splits(op, loaded).0,
        };
        let attributes = loaded.main.attributes();
        let plan = AttentionPlan {
            kernel: kernel.into(),
            architecture: loaded.architecture.to_string(),
            tile: (loaded.tiles.m, loaded.tiles.n),
            stages: loaded.tiles.stages,
            threads: loaded.tiles.threads,
            shared_bytes: loaded.tiles.shared_bytes,
            registers: attributes.registers,
            local_bytes: attributes.local_bytes,
            splits,
        };
        let reply = postcard::to_allocvec(&plan)
            .map_err(|error| GpuError::invalid(PlanQuery::NAME, "reply", format!("it does not serialise: {error}")))?;
        call.reply_bytes(&reply);
        Ok(())
    }
}

/// The address of buffer `index`, which the kernels load 16 bytes at a time.
fn aligned(operation: &str, argument: &str, call: &CudaCall<'_>, index: usize) -> Result<u64> {
    let address = call.ptr(index)?;
    if address.is_multiple_of(16) {
        return Ok(address);
    }
    let reason = "it does not begin at a multiple of 16 bytes; slices must begin at a multiple of 8 elements";
    Err(GpuError::invalid(operation, argument, reason))
}
