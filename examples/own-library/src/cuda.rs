//! The CUDA half: kernels of our own, compiled by NVRTC for the device that is there.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{Operation, Result};
use atomr_cuda_nvrtc::compiler::{Architecture, Kernel, LaunchConfig, Module, Source, compile, version};

use crate::op::{CrossEntropy, LIBRARY, Softmax};

/// Threads of a block, as in `kernels.cu`.
const THREADS: u32 = 256;
/// The largest grid; kernels take as many rows as there are.
const MOST_BLOCKS: u64 = 1 << 20;
/// Blocks that sum up losses, each into one place.
const MOST_PARTIAL: u64 = 256;
/// Bytes of `Loss` in `kernels.cu`.
const LOSS_BYTES: u64 = 16;

/// Makes the CUDA half. Compiling is left to a side task, since this runs on the enqueue thread.
pub(crate) fn new(setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    // Without NVRTC the library is reported as missing now, and not by its first operation.
    let (major, minor) = version()?;
    let capability = setup.compute_capability;
    let architecture = Architecture::of(capability.0, capability.1)?;
    Ok(Box::new(CudaRowwise { kernels: Arc::default(), architecture, version: format!("NVRTC {major}.{minor}") }))
}

struct CudaRowwise {
    kernels: Arc<OnceLock<Kernels>>,
    architecture: Architecture,
    version: String,
}

impl CudaLibrary for CudaRowwise {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        let Some(kernels) = self.kernels.get() else {
            let (kernels, architecture) = (self.kernels.clone(), self.architecture);
            return Ok(call.later(move || {
                let loaded = Kernels::load(architecture)?;
                // Where another stream's task was first, its kernels stay and these go.
                kernels.get_or_init(|| loaded);
                Ok(())
            }));
        };
        match call.code() {
            Softmax::CODE => softmax(kernels, call),
            CrossEntropy::CODE => cross_entropy(kernels, call),
            code => Err(unknown_operation(LIBRARY, code)),
        }?;
        Ok(Step::Done)
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}

struct Kernels {
    softmax: Kernel,
    partial_losses: Kernel,
    total_loss: Kernel,
}

impl Kernels {
    /// Compiles, unless a cache has the result, and loads into the current context.
    fn load(architecture: Architecture) -> Result<Self> {
        let module = Module::load(&*compile(&source(), architecture)?)?;
        Ok(Kernels {
            softmax: module.kernel("softmax")?,
            partial_losses: module.kernel("partial_losses")?,
            total_loss: module.kernel("total_loss")?,
        })
    }
}

fn source() -> Source {
    Source::new("kernels.cu", include_str!("kernels.cu"))
}

fn softmax(kernels: &Kernels, call: &mut CudaCall<'_>) -> Result<()> {
    let op: Softmax = call.params()?;
    let arguments = [call.ptr(0)?, call.ptr(1)?, call.ptr(2)?, op.rows, op.columns];
    // SAFETY: `softmax` takes x, y, log_sums, rows and columns; `Softmax::check` has seen that the
    // buffers hold as many elements as the shape says.
    unsafe { launch(&kernels.softmax, op.rows.min(MOST_BLOCKS), arguments, call) }
}

fn cross_entropy(kernels: &Kernels, call: &mut CudaCall<'_>) -> Result<()> {
    let op: CrossEntropy = call.params()?;
    let blocks = op.rows.div_ceil(u64::from(THREADS)).min(MOST_PARTIAL);
    let partial = call.scratch(blocks * LOSS_BYTES)?;
    let arguments = [call.ptr(0)?, call.ptr(1)?, call.ptr(2)?, partial, op.rows, op.columns];
    // SAFETY: `partial_losses` takes x, log_sums, labels, one `Loss` a block, rows and columns;
    // `CrossEntropy::check` has seen the buffers' sizes, and the kernel looks at each label itself.
    unsafe { launch(&kernels.partial_losses, blocks, arguments, call) }?;
    let arguments = [partial, call.reply_ptr()?, blocks];
    // SAFETY: `total_loss` takes the losses, one `Loss` that it writes, and how many there are; the
    // reply slot holds `CrossEntropy::reply_bytes`, which is a `Loss`.
    unsafe { launch(&kernels.total_loss, 1, arguments, call) }
}

/// Enqueues `kernel` on the call's stream.
///
/// # Safety
/// The kernel's parameters are `arguments`, all of 64 bits, and what they point to is valid until the
/// kernel has finished.
unsafe fn launch<const N: usize>(
    kernel: &Kernel,
    blocks: u64,
    mut arguments: [u64; N],
    call: &CudaCall<'_>,
) -> Result<()> {
    let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], ..LaunchConfig::default() };
    let mut pointers = arguments.each_mut().map(|argument| std::ptr::from_mut(argument).cast::<c_void>());
    // SAFETY: one pointer a parameter, to its 64 bits, which the driver copies before it returns; the
    // rest is the caller's contract. The stream is the current context's.
    unsafe { kernel.launch(&config, call.stream(), &mut pointers) }
}

#[cfg(test)]
mod tests {
    use atomr_cuda_core::GpuError;

    use super::*;

    /// Compiling needs NVRTC but no GPU, so mistakes in the kernels show everywhere.
    #[test]
    fn the_kernels_compile_for_every_architecture() {
        if let Err(error @ GpuError::LibraryMissing { .. }) = version() {
            println!("skipped: no NVRTC: {error}");
            return;
        }
        for architecture in ["sm_80", "sm_90a", "sm_100a"] {
            let compiled = compile(&source(), architecture.parse().unwrap()).unwrap();
            let mut kernels: Vec<_> = compiled.resources().iter().map(|kernel| kernel.kernel.as_str()).collect();
            kernels.sort_unstable();
            assert_eq!(kernels, ["partial_losses", "softmax", "total_loss"]);
            assert!(compiled.resources().iter().all(|kernel| kernel.spill_stores == 0), "{:?}", compiled.resources());
        }
    }
}
