//! A variant, compiled and loaded.

use std::ffi::c_void;

use atomr_cuda_core::Result;
use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_nvrtc::compiler::{Architecture, Kernel, LaunchConfig, Module, compile};

use super::variant::{Family, Tiles, Variant};

pub(super) struct Loaded {
    pub main: Kernel,
    pub combine: Option<Kernel>,
    pub inspection: Option<Kernel>,
    pub tiles: Tiles,
    /// Blocks of the main kernel that a multiprocessor runs at a time.
    pub blocks: u32,
    pub architecture: Architecture,
}

impl Loaded {
    /// Compiles, unless a cache has the result, and loads into the current context.
    pub fn load(variant: &Variant, device: Architecture) -> Result<Self> {
        let architecture = variant.architecture(device);
        let module = Module::load(&*compile(&variant.source(architecture), architecture)?)?;
        let main = module.kernel(variant.kernel())?;
        let tiles = variant.tiles(architecture.capability());
        main.set_max_dynamic_shared(tiles.shared_bytes)?;
        let blocks = main.max_active_blocks(tiles.threads, tiles.shared_bytes)?.max(1);
        let combine = matches!(variant.family, Family::Decode).then(|| module.kernel("attention_decode_combine"));
        let inspection = variant.inspection().map(|name| module.kernel(name));
        Ok(Loaded {
            main,
            combine: combine.transpose()?,
            inspection: inspection.transpose()?,
            tiles,
            blocks,
            architecture,
        })
    }
}

/// Enqueues `kernel` on the call's stream.
///
/// # Safety
/// `arguments` point to the kernel's parameters, in order and each of the right size; the device
/// memory that those name is valid until the kernel has finished.
pub(super) unsafe fn launch<const N: usize>(
    kernel: &Kernel,
    grid: [u32; 3],
    threads: u32,
    dynamic_shared: u32,
    mut arguments: [*mut c_void; N],
    call: &CudaCall<'_>,
) -> Result<()> {
    let config = LaunchConfig { grid, block: [threads, 1, 1], dynamic_shared, ..LaunchConfig::default() };
    // SAFETY: the caller's contract; the stream is the current context's.
    unsafe { kernel.launch(&config, call.stream(), &mut arguments) }
}

/// A pointer to a parameter, as a launch takes it.
pub(super) fn at<T>(parameter: &T) -> *mut c_void {
    std::ptr::from_ref(parameter).cast_mut().cast()
}
