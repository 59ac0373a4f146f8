//! From a source to a program on a device.

use std::path::PathBuf;
use std::sync::Arc;

use atomr_cuda_core::{Arguments, BufferShape, Device, GpuError, Lane, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::compiler::Source;

use super::LIBRARY;
use super::program::Program;

/// The file in the call's folder that the executor leaves the program in.
const FILE: &str = "program";

/// Compiles a source and loads it. It carries the whole source, so any worker can do it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Compile {
    /// The source.
    pub source: Source,
    /// Where the executor leaves the program: machine code may be larger than any reply.
    pub(crate) file: PathBuf,
    /// The folder that the file is in, which goes with the call, or why there is none.
    #[serde(skip)]
    folder: Option<Result<Arc<TempDir>>>,
    #[serde(skip)]
    device: Option<Device>,
}

impl Compile {
    pub(crate) fn new(device: &Device, source: &Source) -> Self {
        let folder = tempfile::Builder::new().prefix("atomr-cuda-").tempdir().map(Arc::new);
        let folder = folder.map_err(|error| GpuError::io("nvrtc.compile: making a temporary folder", error));
        let file = folder.as_ref().map(|folder| folder.path().join(FILE)).unwrap_or_default();
        Compile { source: source.clone(), file, folder: Some(folder), device: Some(device.clone()) }
    }
}

impl Operation for Compile {
    type Output = Program;
    const NAME: &'static str = "nvrtc.compile";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 0;
    const LANE: Lane = Lane::Side;

    fn arguments(&self) -> Arguments {
        Arguments::new()
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        if let Some(Err(error)) = &self.folder {
            return Err(error.clone());
        }
        self.source.check()
    }

    /// `reply` is the digest of the file.
    fn output(self, reply: &[u8]) -> Result<Program> {
        let device = self
            .device
            .as_ref()
            .ok_or_else(|| GpuError::invalid(Self::NAME, "device", "the operation was not made by `Nvrtc::compile`"))?;
        let packed = std::fs::read(&self.file)
            .map_err(|error| GpuError::io(format!("{}: reading {}", Self::NAME, self.file.display()), error))?;
        if Sha256::digest(&packed).as_slice() != reply {
            let reason = format!("{} is not what the executor wrote", self.file.display());
            return Err(GpuError::invalid(Self::NAME, "program", reason));
        }
        Program::unpack(device, &packed)
    }
}
