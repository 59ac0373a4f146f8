//! Machine code in the current context, and its kernels.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{GpuError, Result};
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute as Attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig, CUmodule, CUresult, CUstream,
};
use serde::{Deserialize, Serialize};

use crate::compiler::Compiled;

/// Machine code loaded into a context. Clones, and its kernels, share it; it is unloaded with the last.
///
/// Nothing that it launched may be running then, and the context it was loaded into must be current:
/// a [`ModuleCache`](super::ModuleCache) sees to both. Loading and unloading may wait for the GPU, so
/// they belong on a side task.
#[derive(Debug, Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded(CUmodule);

// SAFETY: modules may be used from every thread that has their context current (CUDA driver API).
unsafe impl Send for Loaded {}
// SAFETY: as above; the driver's functions on modules and kernels lock for themselves.
unsafe impl Sync for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded by `Module::load_image`, unloaded once. It fails only in a context that is
        // gone, with which the code went.
        let _ = unsafe { sys::cuModuleUnload(self.0) };
    }
}

impl Module {
    /// Loads what was compiled into the current context (`cuModuleLoadData`). Call it from a side task.
    ///
    /// # Errors
    /// The driver's answer as [`GpuError::Library`]: code for another architecture, no memory.
    pub fn load(compiled: &Compiled) -> Result<Self> {
        Self::load_cubin(compiled.cubin())
    }

    /// As [`Module::load`], for machine code that a compiler in this or another process made.
    pub(crate) fn load_cubin(cubin: &[u8]) -> Result<Self> {
        if !cubin.starts_with(b"\x7fELF") {
            return Err(GpuError::invalid("nvrtc.load", "cubin", "it is not machine code"));
        }
        let mut module = std::ptr::null_mut();
        // SAFETY: the machine code, whose headers say how long it is, and the place that is written
        // outlive the call.
        let status = unsafe { sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()) };
        check_driver("cuModuleLoadData", status)?;
        Ok(Module { loaded: Arc::new(Loaded(module)) })
    }

    /// The kernel with this name in the machine code: [`Compiled::lowered`] gives it for a name
    /// expression; `extern "C"` kernels have their own. Loads the kernel too.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] where there is no such kernel.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let missing = || GpuError::invalid("nvrtc.kernel", "name", format!("the program has no kernel `{name}`"));
        let terminated = CString::new(name).map_err(|_| missing())?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is alive, the string is terminated, the place that is written outlives the call.
        let status = unsafe { sys::cuModuleGetFunction(&mut raw, self.loaded.0, terminated.as_ptr()) };
        if status == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(missing());
        }
        check_driver("cuModuleGetFunction", status)?;
        Kernel::new(raw, self.clone())
    }

    /// All kernels with their names, in the order of their names.
    ///
    /// # Errors
    /// The driver's answer.
    pub fn kernels(&self) -> Result<Vec<(String, Kernel)>> {
        let mut count = 0;
        // SAFETY: the module is alive; the place that is written outlives the call.
        let status = unsafe { sys::cuModuleGetFunctionCount(&mut count, self.loaded.0) };
        check_driver("cuModuleGetFunctionCount", status)?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: the array has the length that is given; the module is alive.
        let status = unsafe { sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.loaded.0) };
        check_driver("cuModuleEnumerateFunctions", status)?;
        let mut kernels = Vec::with_capacity(functions.len());
        for raw in functions.into_iter().filter(|raw| !raw.is_null()) {
            let mut name = std::ptr::null();
            // SAFETY: the function is one of the live module's; the place that is written outlives the call.
            check_driver("cuFuncGetName", unsafe { sys::cuFuncGetName(&mut name, raw) })?;
            // SAFETY: on success it is a terminated string that lives as long as the module.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            kernels.push((name, Kernel::new(raw, self.clone())?));
        }
        kernels.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(kernels)
    }
}

/// A kernel of a loaded module, which it keeps loaded.
#[derive(Debug, Clone)]
pub struct Kernel {
    raw: CUfunction,
    attributes: Arc<KernelAttributes>,
    /// Keeps the function alive.
    _module: Module,
}

// SAFETY: as for modules.
unsafe impl Send for Kernel {}
// SAFETY: as for modules.
unsafe impl Sync for Kernel {}

/// What the driver says of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelAttributes {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of local memory a thread: stack and spilled registers.
    pub local_bytes: u32,
    /// Bytes of shared memory that were known when compiling.
    pub static_shared: u32,
    /// Bytes of constant memory that the user's code declares.
    pub constant_bytes: u32,
    /// Most threads in a block, by the kernel's registers and launch bounds.
    pub max_threads: u32,
    /// Offset and size in bytes of each parameter, in order.
    pub parameters: Vec<(u32, u32)>,
}

/// How a kernel is to be launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y and z; compute capability 9.0 and later.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of shared memory beyond what was known when compiling.
    pub dynamic_shared: u32,
    /// Whether all blocks run at the same time and may wait for one another.
    pub cooperative: bool,
}

impl Default for LaunchConfig {
    /// One thread.
    fn default() -> Self {
        LaunchConfig { grid: [1; 3], block: [1; 3], cluster: None, dynamic_shared: 0, cooperative: false }
    }
}

impl Kernel {
    fn new(raw: CUfunction, module: Module) -> Result<Self> {
        // Otherwise the first launch loads it, and may wait for the GPU.
        // SAFETY: the function is one of the live module's.
        check_driver("cuFuncLoad", unsafe { sys::cuFuncLoad(raw) })?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: as above; the place that is written outlives the call.
            check_driver("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut value, attribute, raw) })?;
            Ok::<u32, GpuError>(u32::try_from(value).unwrap_or(0))
        };
        let attributes = Arc::new(KernelAttributes {
            registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            constant_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
            max_threads: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            parameters: parameters(raw)?,
        });
        Ok(Kernel { raw, attributes, _module: module })
    }

    /// What the driver says of it.
    pub fn attributes(&self) -> &KernelAttributes {
        &self.attributes
    }

    /// The driver's handle, good while this lives.
    pub fn raw(&self) -> CUfunction {
        self.raw
    }

    /// Allows launches with up to `bytes` of dynamic shared memory; without it, 48 KiB less what is
    /// static. Once, after loading.
    ///
    /// # Errors
    /// The driver's answer where the device has less.
    pub fn set_max_dynamic_shared(&self, bytes: u32) -> Result<()> {
        self.set(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)
    }

    /// Allows clusters of more than eight blocks, which not every device of the architecture need have.
    ///
    /// # Errors
    /// The driver's answer before compute capability 9.0.
    pub fn allow_large_clusters(&self) -> Result<()> {
        self.set(Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    }

    fn set(&self, attribute: Attribute, value: u32) -> Result<()> {
        let value = i32::try_from(value).unwrap_or(i32::MAX);
        // SAFETY: the function is alive, with its module.
        check_driver("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.raw, attribute, value) })
    }

    /// Blocks of `threads` threads that a multiprocessor runs at a time
    /// (`cuOccupancyMaxActiveBlocksPerMultiprocessor`).
    ///
    /// # Errors
    /// The driver's answer.
    pub fn max_active_blocks(&self, threads: u32, dynamic_shared: u32) -> Result<u32> {
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is alive; the place that is written outlives the call.
        let status = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.raw, threads, dynamic_shared as usize)
        };
        check_driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", status)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// The threads of a block with which a multiprocessor is fullest, and the blocks that fill the
    /// device then (`cuOccupancyMaxPotentialBlockSize`).
    ///
    /// # Errors
    /// The driver's answer.
    pub fn best_block(&self, dynamic_shared: u32) -> Result<(u32, u32)> {
        let (mut grid, mut block) = (0, 0);
        // SAFETY: the function is alive; the places that are written outlive the call; no callback is given.
        let status = unsafe {
            sys::cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, self.raw, None, dynamic_shared as usize, 0)
        };
        check_driver("cuOccupancyMaxPotentialBlockSize", status)?;
        Ok((u32::try_from(block).unwrap_or(0), u32::try_from(grid).unwrap_or(0)))
    }

    /// Launches it on `stream` (`cuLaunchKernelEx`). Does not wait.
    ///
    /// # Errors
    /// The driver's answer: a block, cluster or shared memory that the kernel or device cannot have.
    ///
    /// # Safety
    /// There is one pointer for each of the kernel's parameters, in order, each to as many readable
    /// bytes as [`KernelAttributes::parameters`] says. Device memory that the kernel uses stays valid
    /// until it has finished. The stream belongs to the module's context, which is current.
    pub unsafe fn launch(&self, config: &LaunchConfig, stream: CUstream, arguments: &mut [*mut c_void]) -> Result<()> {
        let mut attributes = [MaybeUninit::<CUlaunchAttribute>::uninit(); 2];
        let mut count = 0;
        let mut push = |id, value| {
            attributes[count].write(CUlaunchAttribute { id, pad: [0; 4], value });
            count += 1;
        };
        if let Some([x, y, z]) = config.cluster {
            let cluster = CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            let value = CUlaunchAttributeValue { clusterDim: cluster };
            push(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
        }
        if config.cooperative {
            let value = CUlaunchAttributeValue { cooperative: 1 };
            push(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value);
        }
        let raw = CUlaunchConfig {
            gridDimX: config.grid[0],
            gridDimY: config.grid[1],
            gridDimZ: config.grid[2],
            blockDimX: config.block[0],
            blockDimY: config.block[1],
            blockDimZ: config.block[2],
            sharedMemBytes: config.dynamic_shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr().cast(),
            numAttrs: count as u32,
        };
        // SAFETY: `count` attributes are written and outlive the call, as `raw` does; the rest is the
        // caller's contract.
        let status = unsafe { sys::cuLaunchKernelEx(&raw, self.raw, arguments.as_mut_ptr(), std::ptr::null_mut()) };
        check_driver("cuLaunchKernelEx", status)
    }
}

/// Offset and size of each parameter.
fn parameters(raw: CUfunction) -> Result<Vec<(u32, u32)>> {
    let mut parameters = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is alive; the places that are written outlive the call.
        let status = unsafe { sys::cuFuncGetParamInfo(raw, parameters.len(), &mut offset, &mut size) };
        if status == CUresult::CUDA_ERROR_INVALID_VALUE {
            // The index is past the last one.
            return Ok(parameters);
        }
        check_driver("cuFuncGetParamInfo", status)?;
        parameters.push((offset as u32, size as u32));
    }
}
