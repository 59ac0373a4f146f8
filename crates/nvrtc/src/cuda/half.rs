//! The executor half: compiles on side threads, keeps what is loaded, launches.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atomr_cuda_core::executor::{CudaCall, CudaLibrary, CudaSetup, Step, unknown_operation};
use atomr_cuda_core::{GpuError, Operation, Result};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::compiler::{self, Architecture};
use crate::op::{Compile, DeviceLimits, LIBRARY, Launch, Occupancy, OccupancyQuery, ProgramKey, Value, key_of, pack};

use super::limits;
use super::module::Kernel;
use super::module_cache::ModuleCache;
use super::nvrtc;
use super::program::LoadedProgram;

/// Programs that are loaded at a time.
const PROGRAMS: usize = 64;

/// Makes the CUDA half.
pub(crate) fn new(setup: &CudaSetup) -> Result<Box<dyn CudaLibrary>> {
    nvrtc::require()?;
    let (major, minor) = nvrtc::version()?;
    Ok(Box::new(CudaNvrtc {
        architecture: Architecture::of(setup.compute_capability.0, setup.compute_capability.1)?,
        limits: limits::of(setup)?,
        programs: ModuleCache::new(PROGRAMS),
        written: Arc::default(),
        version: format!("{major}.{minor}"),
    }))
}

struct CudaNvrtc {
    architecture: Architecture,
    limits: DeviceLimits,
    programs: ModuleCache<ProgramKey, LoadedProgram>,
    /// Digests of programs that side tasks have written, until their calls are made again.
    written: Arc<Mutex<HashMap<PathBuf, [u8; 32]>>>,
    version: String,
}

impl CudaLibrary for CudaNvrtc {
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step> {
        match call.code() {
            Compile::CODE => self.compile(call),
            Launch::CODE => self.launch(call),
            OccupancyQuery::CODE => self.occupancy(call),
            code => Err(unknown_operation(LIBRARY, code)),
        }
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}

impl CudaNvrtc {
    fn compile(&self, call: &mut CudaCall<'_>) -> Result<Step> {
        let Compile { source, file, .. } = call.params()?;
        let digest = self.written.lock().remove(&file);
        if let Some(digest) = digest {
            call.reply_bytes(&digest);
            return Ok(Step::Done);
        }
        let (architecture, limits) = (self.architecture, self.limits);
        let (programs, written) = (self.programs.clone(), self.written.clone());
        Ok(call.later(move || {
            let compiled = compiler::compile(&source, architecture)?;
            let key = key_of(compiled.cubin());
            let loaded = LoadedProgram::load(compiled.cubin(), &key, &limits)?;
            let packed = pack(&loaded.describe(&compiled, &limits), compiled.cubin())?;
            programs.insert(key, loaded)?;
            hand_over(&file, &packed)
                .map_err(|error| GpuError::io(format!("{}: writing {}", Compile::NAME, file.display()), error))?;
            written.lock().insert(file, Sha256::digest(&packed).into());
            Ok(())
        }))
    }

    fn launch(&self, call: &mut CudaCall<'_>) -> Result<Step> {
        let launch: Launch = call.params()?;
        let done = self
            .programs
            .with(&launch.program, call.stream(), |program| start(program.kernel(launch.kernel)?, &launch, call))?;
        match done {
            Some(()) => Ok(Step::Done),
            None => self.load(call, launch.program),
        }
    }

    fn occupancy(&self, call: &mut CudaCall<'_>) -> Result<Step> {
        let query: OccupancyQuery = call.params()?;
        let found = self.programs.with(&query.program, call.stream(), |program| {
            let kernel = program.kernel(query.kernel)?;
            let blocks = kernel.max_active_blocks(query.threads, query.dynamic_shared)?;
            let (best_block, best_grid) = kernel.best_block(query.dynamic_shared)?;
            let threads = (blocks.saturating_mul(query.threads), self.limits.multiprocessor_threads);
            Ok(Occupancy { blocks, threads, best_block, best_grid })
        })?;
        let Some(occupancy) = found else { return self.load(call, query.program) };
        let reply = postcard::to_allocvec(&occupancy).map_err(|error| {
            GpuError::invalid(OccupancyQuery::NAME, "reply", format!("it does not serialise: {error}"))
        })?;
        call.reply_bytes(&reply);
        Ok(Step::Done)
    }

    /// Loads a program from its machine code, the call's first buffer: in a worker that has not seen
    /// it, or not for long.
    fn load(&self, call: &CudaCall<'_>, key: ProgramKey) -> Result<Step> {
        let cubin = call.host_bytes(0)?.to_vec();
        let (programs, limits) = (self.programs.clone(), self.limits);
        Ok(call.later(move || programs.insert(key, LoadedProgram::load(&cubin, &key, &limits)?)))
    }
}

/// Leaves the program for the front, whole or not at all. Fails when nobody waits for it any more: the
/// folder goes with the call.
fn hand_over(path: &Path, packed: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().ok_or(std::io::ErrorKind::NotFound)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(packed)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Puts the arguments together and launches.
fn start(kernel: &Kernel, launch: &Launch, call: &CudaCall<'_>) -> Result<()> {
    let parameters = &kernel.attributes().parameters;
    let sizes_agree = launch.values.iter().zip(parameters).all(|(value, (_, size))| value.bytes() == *size as usize);
    if launch.values.len() != parameters.len() || !sizes_agree {
        return Err(GpuError::invalid(Launch::NAME, "arguments", "they are not the kernel's"));
    }
    // Sixteen bytes a word, so that no argument is less aligned than its type may ask for.
    let mut words: SmallVec<[u128; 16]> = SmallVec::new();
    let mut starts: SmallVec<[usize; 16]> = SmallVec::new();
    let mut buffer = 1;
    for value in &launch.values {
        starts.push(words.len());
        match value {
            Value::Plain(bytes) => {
                words.resize(words.len() + bytes.len().div_ceil(size_of::<u128>()), 0);
                let start = starts[starts.len() - 1];
                bytemuck::cast_slice_mut(&mut words[start..])[..bytes.len()].copy_from_slice(bytes);
            }
            Value::Read | Value::Write | Value::ReadWrite => {
                words.push(call.ptr(buffer)?.into());
                buffer += 1;
            }
        }
    }
    let base = words.as_mut_ptr();
    let mut pointers: SmallVec<[*mut c_void; 16]> =
        starts.iter().map(|start| base.wrapping_add(*start).cast::<c_void>()).collect();
    // SAFETY: there is a pointer for each parameter, to as many bytes as it has (checked above), in
    // `words`, which outlives the call; the front keeps the buffers until the launch has finished;
    // the stream and the current context are the executor's. What the kernel does is the user's, and
    // the worker's life is at stake, not the application's.
    unsafe { kernel.launch(&launch.config, call.stream(), &mut pointers) }
}
