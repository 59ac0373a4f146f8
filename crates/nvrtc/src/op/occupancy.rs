//! How full a kernel makes the device.

use atomr_cuda_core::{Argument, Arguments, BufferShape, GpuError, Lane, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};

use super::LIBRARY;
use super::program::{KernelFn, ProgramKey};

/// Asks how many blocks of a kernel a multiprocessor runs at a time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OccupancyQuery {
    pub(crate) program: ProgramKey,
    pub(crate) kernel: u32,
    pub(crate) threads: u32,
    pub(crate) dynamic_shared: u32,
    #[serde(skip)]
    checked: Option<KernelFn>,
}

/// How full a kernel makes a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// Blocks that a multiprocessor runs at a time.
    pub blocks: u32,
    /// Their threads, and the most that a multiprocessor has.
    pub threads: (u32, u32),
    /// The threads of a block with which a multiprocessor would be fullest.
    pub best_block: u32,
    /// Blocks of that size that fill the device.
    pub best_grid: u32,
}

impl Occupancy {
    /// Threads that run, of those that could: 0 to 1.
    pub fn fraction(&self) -> f64 {
        f64::from(self.threads.0) / f64::from(self.threads.1.max(1))
    }
}

impl OccupancyQuery {
    pub(crate) fn new(kernel: &KernelFn, threads: u32, dynamic_shared: u32) -> Self {
        OccupancyQuery {
            program: kernel.program().key(),
            kernel: kernel.index(),
            threads,
            dynamic_shared,
            checked: Some(kernel.clone()),
        }
    }
}

impl Operation for OccupancyQuery {
    type Output = Occupancy;
    const NAME: &'static str = "nvrtc.occupancy";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 2;
    const LANE: Lane = Lane::Side;

    fn arguments(&self) -> Arguments {
        [Argument::read("program")].into_iter().collect()
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        let Some(kernel) = &self.checked else {
            return Err(GpuError::invalid(Self::NAME, "kernel", "the operation was not made by `Nvrtc::occupancy`"));
        };
        let info = kernel.info();
        if !(1..=info.attributes.max_threads).contains(&self.threads) {
            let reason = format!("{} threads in a block; 1 to {}", self.threads, info.attributes.max_threads);
            return Err(GpuError::invalid(Self::NAME, "threads", reason));
        }
        if self.dynamic_shared > info.max_dynamic_shared {
            let reason = format!("{} bytes; at most {}", self.dynamic_shared, info.max_dynamic_shared);
            return Err(GpuError::invalid(Self::NAME, "dynamic_shared", reason));
        }
        Ok(())
    }

    fn output(self, reply: &[u8]) -> Result<Occupancy> {
        postcard::from_bytes(reply).map_err(|error| GpuError::Protocol {
            side: "worker".into(),
            reason: format!("{}: the reply does not decode: {error}", Self::NAME),
        })
    }
}
