//! What the worker's loop asks of an executor. Host and CUDA implement it; the loop is the same.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::executor::{ExecutorKind, Step};
use crate::memory::{Mapping, Space};
use crate::operation::{Access, LibraryId};

/// Streams that one device may have.
pub(crate) const MAX_STREAMS: usize = 16;

/// Segment number of a buffer that is made up for a rehearsal.
pub(crate) const SCRATCH_SEGMENT: u32 = u32::MAX;

/// One operation as it came over the ring, decoded.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub ticket: u64,
    /// `None`: side lane.
    pub stream: Option<u8>,
    pub seq: u64,
    pub library: LibraryId,
    pub code: u16,
    /// Byte offset of the reply slot within the shared page; `None` when there is no reply.
    pub reply_at: Option<u32>,
    /// Streams, with the sequence number on each, that must have finished first.
    pub waits: smallvec::SmallVec<[(u8, u64); 2]>,
    pub buffers: smallvec::SmallVec<[BufferDesc; 4]>,
    pub params: smallvec::SmallVec<[u8; 96]>,
}

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferDesc {
    pub id: u64,
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
    pub access: Access,
    pub dtype: DType,
    /// Whether the range is the whole buffer.
    pub whole: bool,
}

/// What the front tells a new worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StartConfig {
    pub kind: ExecutorKind,
    pub ordinal: u32,
    /// Streams of normal priority, and of high priority, which come last.
    pub streams: (u8, u8),
    /// `EnabledLibraries` bits.
    pub libraries: u64,
    /// Whether the executor shares the application's process.
    pub in_process: bool,
    /// Microseconds that the enqueue thread spins on an empty ring before it parks.
    pub spin_us: u32,
}

/// What a worker says of itself when it is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerInfo {
    /// The device's name.
    pub device_name: String,
    /// Compute capability; `(0, 0)` on the host.
    pub compute_capability: (u32, u32),
    /// Segment sizes are multiples of this.
    pub granularity: u64,
    /// For each enabled and linked library: its id and its version, or why it cannot be used.
    pub libraries: Vec<(u8, std::result::Result<String, GpuError>)>,
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// An executor, driven by the worker's enqueue thread.
pub(crate) trait Backend {
    fn info(&self) -> WorkerInfo;

    /// Carries out or enqueues one operation. The reply bytes of side-lane operations (and of host
    /// operations) go to `reply`; a stream operation's CUDA reply is written by the GPU into the
    /// page at `frame.reply_at`. `Err` fails this operation alone unless it `is_sticky`.
    fn enqueue(&mut self, frame: &Frame, reply: &mut Vec<u8>) -> Result<Step>;

    /// Carries out an operation on scratch memory, so that the next one of its kind finds everything
    /// ready. Its result and its failure do not matter.
    fn rehearse(&mut self, _frame: &Frame) -> Result<Step> {
        Ok(Step::Done)
    }

    /// Makes `stream` wait until `after` has reached what was enqueued on it so far.
    fn order(&mut self, stream: u8, after: u8) -> Result<()>;

    /// Has the counter of `stream` become `seq` when everything enqueued on it so far has finished.
    fn publish(&mut self, stream: u8, seq: u64) -> Result<()>;

    /// Operations that may share one counter write. The host writes after each; it costs nothing there.
    fn batch(&self) -> u32 {
        64
    }

    /// Looks for sticky errors; called about every millisecond while work is in flight or idle.
    fn sweep(&mut self) -> Result<()>;

    /// Segment services, usable from the control thread.
    fn segments(&self) -> Arc<dyn Segments>;

    /// Wraps a side task so that it can run on another thread (CUDA makes its context current).
    fn side_task(&self, task: crate::executor::SideTask) -> crate::executor::SideTask {
        task
    }

    /// Raw context and stream addresses, for `Isolation::Thread` on CUDA.
    fn raw_handles(&self) -> Option<(u64, Vec<u64>)> {
        None
    }
}

/// Memory segments of an executor, called from the control thread while the enqueue thread runs.
pub(crate) trait Segments: Send + Sync {
    /// Makes a device segment, maps it here as `id`, and exports it.
    fn create(&self, id: u32, bytes: u64) -> Result<OwnedFd>;
    /// Maps a segment that was handed over.
    fn map(&self, id: u32, space: Space, bytes: u64, fd: BorrowedFd<'_>) -> Result<()>;
    /// Unmaps a segment.
    fn unmap(&self, id: u32) -> Result<()>;
    /// Free and total bytes of the device.
    fn memory(&self) -> Result<(u64, u64)>;
}

/// Where the segments lie that were used last: the next operation most likely uses them too.
pub(crate) struct Recent<P> {
    places: [Option<(u32, P)>; 8],
    /// Segments that were unmapped when these were found.
    dropped: u64,
}

impl<P> Default for Recent<P> {
    fn default() -> Self {
        Recent { places: Default::default(), dropped: 0 }
    }
}

impl<P> Recent<P> {
    /// The place of segment `id`, found by `find` where it is not known. What is known is forgotten when
    /// `dropped`, the number of segments that were unmapped, has changed.
    pub fn get(&mut self, id: u32, dropped: u64, find: impl FnOnce() -> Result<P>) -> Result<&P> {
        if self.dropped != dropped {
            *self = Recent { dropped, ..Recent::default() };
        }
        let slot = &mut self.places[id as usize % 8];
        let found = match slot.take() {
            Some((known, place)) if known == id => place,
            _ => find()?,
        };
        Ok(&slot.insert((id, found)).1)
    }
}

/// The shared page as an executor sees it: the mapping, and where the counters lie in it.
#[derive(Clone)]
pub(crate) struct SharedPage {
    pub mapping: Arc<Mapping>,
    /// Byte offset of stream 0's counter; each further one is 64 bytes on.
    pub counters_at: usize,
}
