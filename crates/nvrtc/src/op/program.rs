//! A compiled program as the application holds it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use atomr_cuda_core::{Blob, Device, GpuError, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compiler::{Architecture, KernelAttributes, Resources};

/// Names a program's machine code: the beginning of its digest.
pub(crate) type ProgramKey = [u8; 16];

/// The key of this machine code.
pub(crate) fn key_of(cubin: &[u8]) -> ProgramKey {
    let digest = Sha256::digest(cubin);
    std::array::from_fn(|i| digest[i])
}

/// What the executor says of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Built {
    pub architecture: Architecture,
    pub lowered: Vec<(String, String)>,
    pub log: String,
    pub took: Duration,
    pub from_cache: bool,
    /// In the order of their names.
    pub kernels: Vec<KernelInfo>,
    pub limits: DeviceLimits,
}

/// What a kernel takes, and how it may be launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Its name in the machine code.
    pub name: String,
    /// What the driver says of it: registers, memory, parameters.
    pub attributes: KernelAttributes,
    /// What `ptxas` said of it when it was compiled: spills.
    pub resources: Resources,
    /// Most bytes of dynamic shared memory that a launch may ask for.
    pub max_dynamic_shared: u32,
}

/// What the device allows a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLimits {
    /// Blocks of a grid in x, y and z.
    pub max_grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub max_block: [u32; 3],
    /// Threads of a block.
    pub max_threads: u32,
    /// Threads that a multiprocessor runs at a time.
    pub multiprocessor_threads: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory of a block, static and dynamic.
    pub max_shared: u32,
    /// Whether blocks can form clusters.
    pub clusters: bool,
    /// Whether launches can be cooperative.
    pub cooperative: bool,
}

/// A compiled program on a device. Clones share it. It outlives the worker: the next one loads the
/// machine code from here.
#[derive(Clone)]
pub struct Program {
    inner: Arc<Inner>,
}

struct Inner {
    built: Built,
    key: ProgramKey,
    image: Blob,
}

impl Program {
    /// Takes what [`pack`] wrote.
    pub(crate) fn unpack(device: &Device, packed: &[u8]) -> Result<Self> {
        let damaged = || GpuError::Protocol { side: "worker".into(), reason: "a program does not decode".into() };
        let (built, cubin) = postcard::take_from_bytes::<Built>(packed).map_err(|_| damaged())?;
        Self::new(device, built, cubin)
    }

    pub(crate) fn new(device: &Device, built: Built, cubin: &[u8]) -> Result<Self> {
        let (key, image) = (key_of(cubin), device.blob(cubin)?);
        Ok(Program { inner: Arc::new(Inner { built, key, image }) })
    }

    /// The kernel that a name expression of the source names, or that has this name in the machine
    /// code (`extern "C"`: its own).
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] with the names that there are.
    pub fn kernel(&self, name: &str) -> Result<KernelFn> {
        let built = &self.inner.built;
        let lowered = built.lowered.iter().find(|(expression, _)| expression == name);
        let lowered = lowered.map_or(name, |(_, lowered)| lowered);
        match built.kernels.iter().position(|kernel| kernel.name == lowered) {
            Some(index) => Ok(KernelFn { program: self.clone(), index }),
            None => {
                let expressions = built.lowered.iter().map(|(expression, _)| expression.as_str());
                let names: Vec<_> = expressions.chain(built.kernels.iter().map(|it| it.name.as_str())).collect();
                let reason = format!("there is no `{name}`; there are: {}", names.join(", "));
                Err(GpuError::invalid("nvrtc.kernel", "name", reason))
            }
        }
    }

    /// All kernels, in the order of their names.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.inner.built.kernels
    }

    /// A digest of the machine code: equal for equal code.
    pub fn key(&self) -> [u8; 16] {
        self.inner.key
    }

    /// What it was compiled for.
    pub fn architecture(&self) -> Architecture {
        self.inner.built.architecture
    }

    /// Warnings and remarks of the compiler; empty where there are none.
    pub fn log(&self) -> &str {
        &self.inner.built.log
    }

    /// How long the compiler took, when it ran.
    pub fn took(&self) -> Duration {
        self.inner.built.took
    }

    /// Whether it came from a cache in memory or on disk.
    pub fn from_cache(&self) -> bool {
        self.inner.built.from_cache
    }

    /// What the device allows a launch.
    pub fn limits(&self) -> &DeviceLimits {
        &self.inner.built.limits
    }

    /// Bytes of machine code.
    pub fn image_bytes(&self) -> usize {
        self.inner.image.len()
    }

    pub(crate) fn image(&self) -> &Blob {
        &self.inner.image
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
        write!(f, "Program({} for {})", names.join(", "), self.architecture())
    }
}

/// What the executor hands over: what it says of the program, then the machine code.
pub(crate) fn pack(built: &Built, cubin: &[u8]) -> Result<Vec<u8>> {
    let mut packed = postcard::to_allocvec(built)
        .map_err(|e| GpuError::invalid("nvrtc.compile", "program", format!("it does not serialise: {e}")))?;
    packed.extend_from_slice(cubin);
    Ok(packed)
}

/// A kernel of a [`Program`], which it keeps.
#[derive(Clone)]
pub struct KernelFn {
    program: Program,
    index: usize,
}

impl KernelFn {
    /// What it takes, and how it may be launched.
    pub fn info(&self) -> &KernelInfo {
        &self.program.inner.built.kernels[self.index]
    }

    /// The program that it is part of.
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn index(&self) -> u32 {
        self.index as u32
    }
}

impl fmt::Debug for KernelFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelFn({})", self.info().name)
    }
}
