//! Sub-allocation of segments: an allocation is arithmetic in the front's own memory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use offset_allocator::{Allocation, Allocator};

use super::Mapping;

/// Every block starts and ends on a multiple of this many bytes.
pub(crate) const UNIT: u64 = 256;

/// Which memory a segment is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub(crate) enum Space {
    /// Device memory, made by the executor.
    Device = 0,
    /// Pinned host memory, made by the front.
    Host = 1,
}

/// A range of a segment.
pub(crate) struct Block {
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
    /// `None`: the block is its segment, whole.
    node: Option<Allocation>,
}

struct Segment {
    bytes: u64,
    fd: Arc<OwnedFd>,
    map: Option<Arc<Mapping>>,
    /// Blocks that are out.
    blocks: u32,
    /// `None` while the segment belongs to one block.
    free: Option<Allocator>,
}

/// The segments of one space.
#[derive(Default)]
pub(crate) struct Arena {
    segments: BTreeMap<u32, Segment>,
    /// Bytes in blocks.
    pub used: u64,
    /// Bytes in segments.
    pub reserved: u64,
    last: u32,
}

/// What freeing a block left behind.
pub(crate) enum Freed {
    /// Nothing to do.
    Kept,
    /// The block was its segment: the workers are to unmap it.
    Segment(u32),
}

pub(crate) fn round_up(bytes: u64, unit: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(unit)
}

impl Arena {
    /// A block of at least `bytes` from the segments there are.
    pub fn allocate(&mut self, bytes: u64) -> Option<Block> {
        let bytes = round_up(bytes, UNIT)?;
        let units = u32::try_from(bytes / UNIT).ok()?;
        let last = self.last;
        let order = self.segments.range(last..).chain(self.segments.range(..last)).map(|(id, _)| *id);
        let candidates: smallvec::SmallVec<[u32; 8]> = order.collect();
        for id in candidates {
            let Some(segment) = self.segments.get_mut(&id) else { continue };
            if let Some(node) = segment.free.as_mut().and_then(|free| free.allocate(units)) {
                segment.blocks += 1;
                self.last = id;
                self.used += bytes;
                return Some(Block { segment: id, offset: u64::from(node.offset) * UNIT, bytes, node: Some(node) });
            }
        }
        None
    }

    /// Adds a segment to allocate from; with `whole`, it becomes one block of its own.
    pub fn install(
        &mut self,
        id: u32,
        bytes: u64,
        fd: Arc<OwnedFd>,
        map: Option<Arc<Mapping>>,
        whole: bool,
    ) -> Option<Block> {
        let units = u32::try_from(bytes / UNIT).ok();
        let free = units.filter(|_| !whole).map(Allocator::new);
        self.segments.insert(id, Segment { bytes, fd, map, blocks: u32::from(whole), free });
        self.reserved += bytes;
        whole.then(|| {
            self.used += bytes;
            Block { segment: id, offset: 0, bytes, node: None }
        })
    }

    /// Gives a block back.
    pub fn free(&mut self, block: Block) -> Freed {
        self.used -= block.bytes;
        match block.node {
            Some(node) => {
                if let Some(segment) = self.segments.get_mut(&block.segment) {
                    segment.blocks -= 1;
                    segment.free.iter_mut().for_each(|free| free.free(node));
                }
                Freed::Kept
            }
            None => {
                if let Some(segment) = self.segments.remove(&block.segment) {
                    self.reserved -= segment.bytes;
                }
                Freed::Segment(block.segment)
            }
        }
    }

    /// Removes the segments that no block is out of, and says which they were.
    pub fn trim(&mut self) -> Vec<u32> {
        let unused = self.segments.extract_if(.., |_, segment| segment.blocks == 0);
        let removed: Vec<(u32, u64)> = unused.map(|(id, segment)| (id, segment.bytes)).collect();
        self.reserved -= removed.iter().map(|(_, bytes)| bytes).sum::<u64>();
        removed.into_iter().map(|(id, _)| id).collect()
    }

    /// Every segment: id, bytes and descriptor.
    pub fn segments(&self) -> impl Iterator<Item = (u32, u64, Arc<OwnedFd>)> {
        self.segments.iter().map(|(id, segment)| (*id, segment.bytes, segment.fd.clone()))
    }

    /// The front's mapping of a segment (host space).
    pub fn mapping(&self, id: u32) -> Option<Arc<Mapping>> {
        self.segments.get(&id).and_then(|segment| segment.map.clone())
    }

    /// Forgets every segment; the blocks that are still out are no longer backed.
    pub fn clear(&mut self) {
        *self = Arena::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: u64) -> Arena {
        let mut arena = Arena::default();
        let (reader, _writer) = std::io::pipe().expect("a descriptor");
        assert!(arena.install(1, bytes, Arc::new(reader.into()), None, false).is_none());
        arena
    }

    #[test]
    fn blocks_never_overlap_and_all_come_back() {
        let mut arena = arena(1 << 16);
        let mut live: Vec<Block> = Vec::new();
        let mut state = 1u64;
        for step in 0..if cfg!(miri) { 300 } else { 20_000 } {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pick = (state >> 33) as usize;
            if step % 3 != 2 || live.is_empty() {
                if let Some(block) = arena.allocate(1 + (pick % 3000) as u64) {
                    for other in &live {
                        assert!(
                            block.offset + block.bytes <= other.offset || other.offset + other.bytes <= block.offset
                        );
                    }
                    assert!(block.offset.is_multiple_of(UNIT) && block.offset + block.bytes <= 1 << 16);
                    live.push(block);
                }
            } else {
                let block = live.swap_remove(pick % live.len());
                assert!(matches!(arena.free(block), Freed::Kept));
            }
            assert_eq!(arena.used, live.iter().map(|b| b.bytes).sum::<u64>());
        }
        for block in live {
            arena.free(block);
        }
        assert_eq!(arena.used, 0);
        assert!(arena.allocate(1 << 15).is_some(), "the space is whole again");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let mut arena = arena(1 << 16);
        assert!(arena.allocate(u64::MAX).is_none());
        assert!(arena.allocate(1 << 50).is_none());
    }
}
