//! Device memory as the front keeps it: segments, sub-allocation, buffers, taint.
//!
//! A *segment* is a large piece of memory that the executor (device memory) or the front (pinned
//! host memory) made; its descriptor is held here, so it outlives the worker. Buffers are ranges of
//! segments. Nothing here makes a CUDA call.

mod arena;
mod blob;
mod buffer;
mod host_buf;
mod mapping;
mod uses;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{GpuError, Result};

pub use blob::Blob;
pub use buffer::{GpuRef, View};
pub use host_buf::HostBuf;

pub(crate) use arena::{Block, Space, round_up};
pub(crate) use buffer::Buffer;
pub(crate) use mapping::{Mapping, sealed_memfd};
pub(crate) use uses::{Uses, Waits};

use arena::{Arena, Freed};

/// The book-keeping of one device's memory.
pub(crate) struct Memory {
    /// The device's name in errors.
    pub label: String,
    /// Tells this device from every other in the process.
    pub token: u64,
    /// Buffers made before this generation are stale.
    valid_from: AtomicU64,
    generation: AtomicU64,
    next_segment: AtomicU32,
    next_buffer: AtomicU64,
    limit: Option<u64>,
    host_limit: Option<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    device: Arena,
    host: Arena,
    /// Blocks that a dead worker's kernels may still be writing.
    quarantine: Vec<(u64, Space, Block)>,
    /// Segments that the workers are to unmap.
    dropped: Vec<u32>,
}

impl State {
    fn arena(&mut self, space: Space) -> &mut Arena {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }
}

/// Figures of the memory book-keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub device_used: u64,
    pub device_reserved: u64,
    pub host_used: u64,
    pub host_reserved: u64,
}

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

impl Memory {
    pub fn new(label: String, limit: Option<u64>, host_limit: Option<u64>) -> Arc<Self> {
        Arc::new(Memory {
            label,
            token: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed),
            valid_from: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            next_segment: AtomicU32::new(1),
            next_buffer: AtomicU64::new(1),
            limit,
            host_limit,
            state: Mutex::default(),
        })
    }

    /// A buffer from the segments there are; `None` when a new segment is needed first.
    pub fn allocate(self: &Arc<Self>, space: Space, bytes: u64) -> Option<Arc<Buffer>> {
        let block = self.state.lock().arena(space).allocate(bytes)?;
        Some(self.buffer(space, block, bytes))
    }

    fn buffer(self: &Arc<Self>, space: Space, block: Block, bytes: u64) -> Arc<Buffer> {
        let id = self.next_buffer.fetch_add(1, Ordering::Relaxed);
        Arc::new(Buffer::new(self.clone(), id, space, block, bytes, self.generation.load(Ordering::Acquire)))
    }

    /// The number of a segment that is about to be made.
    pub fn new_segment_id(&self) -> u32 {
        self.next_segment.fetch_add(1, Ordering::Relaxed)
    }

    /// Refuses device memory beyond the configured limit.
    pub fn check_limit(&self, bytes: u64) -> Result<()> {
        within(self.limit, self.state.lock().device.reserved, bytes)
    }

    /// Refuses pinned host memory beyond the configured limit.
    pub fn check_host_limit(&self, bytes: u64) -> Result<()> {
        within(self.host_limit, self.state.lock().host.reserved, bytes)
    }

    /// Drops segments of pinned host memory that nothing uses.
    pub fn trim_host(&self) {
        let mut state = self.state.lock();
        let dropped = state.host.trim();
        state.dropped.extend(dropped);
    }

    /// Adds a segment; with `whole`, the returned buffer is the whole of it.
    pub fn install(
        self: &Arc<Self>,
        space: Space,
        id: u32,
        bytes: u64,
        fd: Arc<OwnedFd>,
        map: Option<Arc<Mapping>>,
        whole: Option<u64>,
    ) -> Option<Arc<Buffer>> {
        let block = self.state.lock().arena(space).install(id, bytes, fd, map, whole.is_some());
        block.map(|block| self.buffer(space, block, whole.unwrap_or(bytes)))
    }

    /// Every segment there is, to be mapped by a new worker.
    pub fn segments(&self) -> Vec<(Space, u32, u64, Arc<OwnedFd>)> {
        let state = self.state.lock();
        let device = state.device.segments().map(|(id, bytes, fd)| (Space::Device, id, bytes, fd));
        let host = state.host.segments().map(|(id, bytes, fd)| (Space::Host, id, bytes, fd));
        device.chain(host).collect()
    }

    /// Segments freed since the last call; the workers are to unmap them.
    pub fn take_dropped(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().dropped)
    }

    /// Whether segments wait to be unmapped.
    pub fn has_dropped(&self) -> bool {
        !self.state.lock().dropped.is_empty()
    }

    pub fn mapping(&self, segment: u32) -> Option<Arc<Mapping>> {
        self.state.lock().host.mapping(segment)
    }

    fn free(&self, space: Space, block: Block) {
        let mut state = self.state.lock();
        if let Freed::Segment(id) = state.arena(space).free(block) {
            state.dropped.push(id);
        }
    }

    /// A fresh block in place of one that a dying worker may still be writing; the old one waits
    /// for [`Memory::release_quarantine`]. Where memory is short the old block stays.
    pub fn relocate(&self, worker: u64, space: Space, block: &mut Block) {
        let mut state = self.state.lock();
        if let Some(fresh) = state.arena(space).allocate(block.bytes) {
            let old = std::mem::replace(block, fresh);
            state.quarantine.push((worker, space, old));
        }
    }

    /// This worker is gone for good: the blocks it might have written may be used again.
    pub fn release_quarantine(&self, worker: u64) {
        let released: Vec<_> = self.state.lock().quarantine.extract_if(.., |entry| entry.0 == worker).collect();
        for (_, space, block) in released {
            self.free(space, block);
        }
    }

    /// A new incarnation of the device begins. Without surviving memory, every buffer is stale.
    pub fn begin_generation(&self, generation: u64, memory_survives: bool) {
        self.generation.store(generation, Ordering::Release);
        if !memory_survives {
            self.valid_from.store(generation, Ordering::Release);
            self.state.lock().device.clear();
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn valid_from(&self) -> u64 {
        self.valid_from.load(Ordering::Acquire)
    }

    pub fn usage(&self) -> MemoryUse {
        let state = self.state.lock();
        MemoryUse {
            device_used: state.device.used,
            device_reserved: state.device.reserved,
            host_used: state.host.used,
            host_reserved: state.host.reserved,
        }
    }
}

fn within(limit: Option<u64>, reserved: u64, requested: u64) -> Result<()> {
    match limit {
        Some(total) if reserved.checked_add(requested).is_none_or(|sum| sum > total) => {
            let free = total.saturating_sub(reserved);
            Err(GpuError::OutOfMemory { requested, free, total, limited: true })
        }
        _ => Ok(()),
    }
}
