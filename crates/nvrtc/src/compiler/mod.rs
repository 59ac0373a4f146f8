//! The compiler as a plain interface, for other library crates and for tools: CUDA C++ in, machine
//! code out, with caches in memory and on disk. It needs NVRTC and no GPU.
//!
//! A library's CUDA half compiles and loads on a side task, and keeps what it loaded in a
//! [`ModuleCache`]:
//!
//! ```ignore
//! match self.modules.with(&variant, call.stream(), |module| module.kernel("forward")?.launch(..))? {
//!     Some(()) => Ok(Step::Done),
//!     None => Ok(call.later(move || {
//!         let compiled = compile(&source, architecture)?;
//!         modules.insert(variant, Module::load(&compiled)?)
//!     })),
//! }
//! ```

mod architecture;
mod compiled;
mod disk;
mod key;
mod source;
mod toolkit;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use atomr_cuda_core::{GpuError, Result};
use lru::LruCache;
use parking_lot::Mutex;

use crate::cuda::nvrtc;

pub use crate::cuda::{Kernel, KernelAttributes, LaunchConfig, Module, ModuleCache};
pub use architecture::Architecture;
pub use compiled::{Compiled, Resources};
pub use source::Source;

pub(crate) use compiled::{first_error_line, split_log};

use disk::Disk;
use key::Key;
use source::invalid;

/// The folder of the disk cache; empty turns it off.
const FOLDER_VARIABLE: &str = "ATOMR_CUDA_CACHE_DIR";
/// Bytes of the disk cache by default.
const DISK_LIMIT: u64 = 1 << 30;
/// Results kept in memory by default.
const IN_MEMORY: usize = 64;
/// Longer logs are cut: they travel with errors.
const MOST_LOG: usize = 48 << 10;

/// Compiles `source` for `architecture`, or takes it from a cache. It may take seconds: call it from
/// a side task. The caches are those of [`Compiler::shared`].
///
/// # Errors
/// [`GpuError::LibraryMissing`] without NVRTC, or without the toolkit's headers where the source asks
/// for them; [`GpuError::Compile`] with name, line and log; [`GpuError::InvalidArgument`] for a source
/// that [`Source::check`] refuses, a missing include folder, an option that NVRTC does not know or an
/// architecture that it does not compile for.
pub fn compile(source: &Source, architecture: Architecture) -> Result<Arc<Compiled>> {
    Compiler::shared().compile(source, architecture)
}

/// The architectures that the loaded NVRTC compiles for, as numbers: 90 for `sm_90` and `sm_90a`.
///
/// # Errors
/// [`GpuError::LibraryMissing`] without NVRTC.
pub fn supported_architectures() -> Result<Vec<i32>> {
    nvrtc::require()?;
    nvrtc::supported_architectures()
}

/// NVRTC's version: major, minor.
///
/// # Errors
/// [`GpuError::LibraryMissing`] without NVRTC.
pub fn version() -> Result<(i32, i32)> {
    nvrtc::require()?;
    nvrtc::version()
}

/// Compiles with caches of its own; [`compile`] uses the shared one.
pub struct Compiler {
    memory: Mutex<LruCache<Key, Arc<Compiled>>>,
    disk: Option<Disk>,
}

impl Compiler {
    /// A compiler with a disk cache of at most `disk_bytes` in `folder`, if one is given.
    pub fn new(folder: Option<PathBuf>, disk_bytes: u64) -> Self {
        let capacity = NonZeroUsize::new(IN_MEMORY).unwrap_or(NonZeroUsize::MIN);
        Compiler {
            memory: Mutex::new(LruCache::new(capacity)),
            disk: folder.map(|folder| Disk::new(folder, disk_bytes)),
        }
    }

    /// The one that every library of this process uses. Its disk cache is in the folder that
    /// `ATOMR_CUDA_CACHE_DIR` names (empty: no disk cache), else in `atomr-cuda` in the user's cache
    /// folder, and holds at most 1 GiB; what was not used for longest goes first.
    pub fn shared() -> &'static Compiler {
        static SHARED: OnceLock<Compiler> = OnceLock::new();
        SHARED.get_or_init(|| {
            let folder = match std::env::var_os(FOLDER_VARIABLE) {
                Some(folder) if folder.is_empty() => None,
                Some(folder) => Some(PathBuf::from(folder)),
                None => dirs::cache_dir().map(|folder| folder.join("atomr-cuda")),
            };
            Compiler::new(folder.map(|folder| folder.join("nvrtc")), DISK_LIMIT)
        })
    }

    /// As the function [`compile`].
    ///
    /// # Errors
    /// As the function [`compile`].
    pub fn compile(&self, source: &Source, architecture: Architecture) -> Result<Arc<Compiled>> {
        source.check()?;
        nvrtc::require()?;
        let toolkit = if source.toolkit_headers { Some(toolkit::headers()?) } else { None };
        let key = Key::new(source, architecture, nvrtc::version()?, toolkit.as_deref())?;
        if let Some(found) = self.memory.lock().get(&key) {
            return Ok(found.clone());
        }
        if let Some(found) = self.disk.as_ref().and_then(|disk| disk.get(&key)) {
            return Ok(self.remember(key, found, true));
        }
        let supported = nvrtc::supported_architectures()?;
        if !supported.contains(&architecture.number()) {
            let (major, minor) = nvrtc::version()?;
            let reason =
                format!("NVRTC {major}.{minor} does not compile for {architecture}; it does for {supported:?}");
            return Err(invalid("architecture", reason));
        }
        let mut include_dirs = source.include_dirs.clone();
        include_dirs.extend(toolkit.iter().flat_map(|headers| toolkit::include_dirs(headers)));
        let started = Instant::now();
        let built = nvrtc::build(source, architecture, &include_dirs)?;
        let (log, resources) = split_log(&built.log);
        let compiled = Compiled {
            cubin: built.cubin,
            lowered: built.lowered,
            log: cut(log),
            architecture,
            resources,
            took: started.elapsed(),
            from_cache: false,
        };
        if let Some(disk) = &self.disk {
            disk.put(&key, &compiled);
        }
        self.remember(key, compiled.clone(), true);
        Ok(Arc::new(compiled))
    }

    fn remember(&self, key: Key, compiled: Compiled, from_cache: bool) -> Arc<Compiled> {
        let kept = Arc::new(Compiled { from_cache, ..compiled });
        self.memory.lock().put(key, kept.clone());
        kept
    }
}

/// The error for a source that does not compile.
pub(crate) fn compile_error(source: &Source, log: String) -> GpuError {
    let (log, _) = split_log(&log);
    GpuError::Compile { source_name: source.name.clone(), line: first_error_line(&source.name, &log), log: cut(log) }
}

fn cut(mut log: String) -> String {
    if log.len() > MOST_LOG {
        let end = (0..=MOST_LOG).rev().find(|at| log.is_char_boundary(*at)).unwrap_or(0);
        log.truncate(end);
        log.push_str("\n[cut]");
    }
    log
}
