//! A recorded list of operations as data: what travels to the worker.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::executor::backend::BufferDesc;
use crate::operation::{Access, LibraryId};

/// One recorded operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub library: LibraryId,
    pub code: u16,
    pub params: Vec<u8>,
    pub arguments: Vec<RecordedArgument>,
}

/// A range of one of the graph's buffers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RecordedArgument {
    /// The buffer's position among those of the launch.
    pub buffer: u32,
    pub offset: u64,
    pub bytes: u64,
    pub access: Access,
    pub dtype: DType,
    pub whole: bool,
}

impl Recorded {
    /// Where the arguments lie, given where the graph's buffers do.
    pub fn resolve(&self, buffers: &[BufferDesc]) -> Result<smallvec::SmallVec<[BufferDesc; 4]>> {
        let place = |argument: &RecordedArgument| {
            let outside =
                || GpuError::Protocol { side: "front".into(), reason: "a graph names no buffer of its own".into() };
            let buffer = buffers.get(argument.buffer as usize).ok_or_else(outside)?;
            let end = argument.offset.checked_add(argument.bytes).filter(|end| *end <= buffer.bytes);
            end.ok_or_else(outside)?;
            Ok(BufferDesc {
                offset: buffer.offset + argument.offset,
                bytes: argument.bytes,
                access: argument.access,
                dtype: argument.dtype,
                whole: argument.whole,
                ..*buffer
            })
        };
        self.arguments.iter().map(place).collect()
    }
}

pub(crate) fn encode(nodes: &[Recorded]) -> Result<Vec<u8>> {
    postcard::to_allocvec(nodes)
        .map_err(|error| GpuError::invalid("core.graph", "nodes", format!("they do not serialise: {error}")))
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Recorded>> {
    postcard::from_bytes(bytes).map_err(|error| GpuError::Protocol {
        side: "front".into(),
        reason: format!("a graph does not decode: {error}"),
    })
}
