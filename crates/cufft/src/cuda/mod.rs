//! The CUDA half: plans, made on side threads and kept, and one area to work in for each stream.

mod plan;
mod scale;
mod workspace;

use atomr_cuda_core::executor::cuda::require_library;
use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{Operation, Result};
use atomr_cuda_nvrtc::compiler::{Architecture, ModuleCache};
use cudarc::cufft::sys;
use cudarc::driver::sys::CUstream;

use crate::op::{LIBRARY, Transform};

use plan::{Plan, PlanKey};
use scale::{Scale, ScaleKey};
use workspace::Workspaces;

/// The library as NVIDIA names it.
pub(crate) const NAME: &str = "cuFFT";
/// Plans that are kept at a time. One may have some megabytes of tables on the device.
const PLANS: usize = 128;

/// Makes the CUDA half.
pub(crate) fn new(setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    // SAFETY: it opens the shared library and closes it again; the constructors that cuFFT runs then
    // are those of every later use.
    require_library(NAME, "cufft", unsafe { sys::is_culib_present() })?;
    let (major, minor) = setup.compute_capability;
    Ok(Box::new(CudaFft {
        architecture: Architecture::of(major, minor)?.base(),
        plans: ModuleCache::new(PLANS),
        scales: ModuleCache::new(8),
        workspaces: Workspaces::default(),
        version: plan::version()?,
    }))
}

struct CudaFft {
    architecture: Architecture,
    plans: ModuleCache<PlanKey, Plan>,
    scales: ModuleCache<ScaleKey, Scale>,
    workspaces: Workspaces,
    version: String,
}

impl CudaLibrary for CudaFft {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        match call.code() {
            Transform::CODE => self.transform(&call.params()?, call),
            code => Err(unknown_operation(LIBRARY, code)),
        }
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}

impl CudaFft {
    fn transform(&self, op: &Transform, call: &mut CudaCall<'_>) -> Result<Step> {
        let (input, output) = op.embeddings()?;
        let types = op.types(call.dtype(0)?)?;
        let factor = op.factor();
        let scale = ScaleKey::of(types.1);
        // Whatever is missing is made first, so that nothing is enqueued twice.
        if factor != 1.0 && self.scales.with(&scale, call.stream(), |_| Ok(()))?.is_none() {
            let (scales, architecture) = (self.scales.clone(), self.architecture);
            return Ok(call.later(move || scales.insert(scale, Scale::load(scale, architecture)?)));
        }
        let key = PlanKey {
            lengths: op.lengths.clone(),
            batch: op.batch,
            input: PlanKey::side(&input),
            output: PlanKey::side(&output),
            types,
        };
        let (stream, index) = (call.stream(), call.stream_index());
        let from = call.ptr(0)?;
        let to = if op.in_place { from } else { call.ptr(1)? };
        let done = self.plans.with(&key, stream, |plan| {
            let Some(work) = self.workspaces.get(index, plan.work_bytes()) else { return Ok(Some(plan.work_bytes())) };
            // SAFETY: `Transform::check` has compared the layouts with the buffers; the area has as many
            // bytes as the plan asks for; the stream is the current context's.
            unsafe { plan.execute(op.kind, from, to, work, stream) }.map(|()| None)
        })?;
        match done {
            None => {
                let plans = self.plans.clone();
                return Ok(call.later(move || {
                    let plan = Plan::new(&key)?;
                    plans.insert(key, plan)
                }));
            }
            Some(Some(bytes)) => {
                // A stream's address, since the pointer itself may not cross threads.
                let (workspaces, stream) = (self.workspaces.clone(), stream as usize);
                return Ok(call.later(move || workspaces.grow(index, stream as CUstream, bytes)));
            }
            Some(None) => {}
        }
        if factor != 1.0 {
            self.scales.with(&scale, stream, |scale| scale.launch(op, &output, to, factor, call))?;
        }
        Ok(Step::Done)
    }
}
