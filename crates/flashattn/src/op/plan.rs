//! Which kernel an operation takes.

use atomr_cuda_core::{Arguments, BufferShape, DType, GpuError, Lane, LibraryId, Operation, Result};
use serde::{Deserialize, Serialize};

use super::{Attention, Decode, LIBRARY};

/// Asks which kernel carries an operation out on this device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanQuery {
    pub(crate) planned: Planned,
    pub(crate) dtype: Option<DType>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Planned {
    Attention(Attention),
    Decode(Decode),
}

/// The kernel that carries an operation out, and how it is launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionPlan {
    /// `forward wgmma`, `forward mma.sync`, `decode mma.sync`, or `host`.
    pub kernel: String,
    /// The architecture that it was compiled for: `sm_90a`.
    pub architecture: String,
    /// Queries and keys of a tile.
    pub tile: (u32, u32),
    /// Stages of the pipeline that loads keys and values.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: spilled registers, if any.
    pub local_bytes: u32,
    /// Parts of a sequence that are computed side by side.
    pub splits: u32,
}

impl AttentionPlan {
    pub(crate) fn host() -> Self {
        AttentionPlan {
            kernel: "host".into(),
            architecture: std::env::consts::ARCH.into(),
            tile: (1, 1),
            stages: 1,
            threads: 1,
            shared_bytes: 0,
            registers: 0,
            local_bytes: 0,
            splits: 1,
        }
    }
}

impl Operation for PlanQuery {
    type Output = AttentionPlan;
    const NAME: &'static str = "flashattn.plan";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 3;
    const LANE: Lane = Lane::Side;

    fn arguments(&self) -> Arguments {
        Arguments::new()
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        match &self.planned {
            Planned::Attention(operation) => operation.check(&[])?,
            Planned::Decode(operation) => operation.check(&[])?,
        }
        match self.dtype {
            Some(DType::F16 | DType::BF16) => Ok(()),
            other => Err(GpuError::invalid(Self::NAME, "q", format!("{other:?}; f16 and bf16 have kernels"))),
        }
    }

    fn output(self, reply: &[u8]) -> Result<AttentionPlan> {
        postcard::from_bytes(reply).map_err(|error| GpuError::Protocol {
            side: "worker".into(),
            reason: format!("{}: the reply does not decode: {error}", Self::NAME),
        })
    }
}
