//! Buffers, and the handles that callers hold.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::dtype::{CudaDtype, DType};
use crate::error::{GpuError, Result};

use super::arena::UNIT;
use super::{Block, Memory, Space, Uses};

/// One allocation. Its memory is free again when the last handle and the last operation in flight
/// that uses it are gone.
pub(crate) struct Buffer {
    memory: Arc<Memory>,
    pub id: u64,
    pub space: Space,
    /// Bytes asked for; the block may be larger.
    pub bytes: u64,
    pub generation: u64,
    /// Segment in the high half, offset in units of [`UNIT`] in the low one.
    place: AtomicU64,
    /// Whether `tainted_by` says anything.
    tainted: AtomicBool,
    state: Mutex<BufferState>,
    /// Touched only under the lock of the device's queues.
    pub uses: Mutex<Uses>,
}

struct BufferState {
    block: Option<Block>,
    /// The operation that was writing it and did not finish.
    tainted_by: Option<&'static str>,
}

impl Buffer {
    pub fn new(memory: Arc<Memory>, id: u64, space: Space, block: Block, bytes: u64, generation: u64) -> Self {
        Buffer {
            memory,
            id,
            space,
            bytes,
            generation,
            place: AtomicU64::new(place(&block)),
            tainted: AtomicBool::new(false),
            state: Mutex::new(BufferState { block: Some(block), tainted_by: None }),
            uses: Mutex::default(),
        }
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where it lies now: segment and offset. It moves only while the device has no worker.
    pub fn location(&self) -> (u32, u64) {
        let place = self.place.load(Ordering::Acquire);
        ((place >> 32) as u32, (place & u64::from(u32::MAX)) * UNIT)
    }

    /// The operation that left its contents undefined.
    pub fn tainted_by(&self) -> Option<&'static str> {
        if self.tainted.load(Ordering::Acquire) { self.state.lock().tainted_by } else { None }
    }

    /// Its contents are defined again.
    pub fn clear_taint(&self) {
        if self.tainted.load(Ordering::Acquire) {
            self.state.lock().tainted_by = None;
            self.tainted.store(false, Ordering::Release);
        }
    }

    /// Marks the contents as undefined. With `writer`, the dying worker that may still be writing,
    /// moves the buffer out of its reach.
    pub fn taint(&self, by: &'static str, writer: Option<u64>) {
        let mut state = self.state.lock();
        state.tainted_by = Some(by);
        self.tainted.store(true, Ordering::Release);
        if let Some(worker) = writer
            && self.space == Space::Device
            && let Some(block) = state.block.as_mut()
        {
            self.memory.relocate(worker, self.space, block);
            self.place.store(place(block), Ordering::Release);
        }
    }
}

/// A block's place in one word; both numbers fit by how segments are made ([`Arena`](super::arena)).
fn place(block: &Block) -> u64 {
    (u64::from(block.segment) << 32) | (block.offset / UNIT)
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Blocks of an earlier generation whose memory is gone have nothing to give back.
        if let Some(block) = self.state.get_mut().block.take()
            && (self.space == Space::Host || self.generation >= self.memory.valid_from())
        {
            self.memory.free(self.space, block);
        }
    }
}

/// A range of a buffer with its element type as data: what operations are given.
#[derive(Clone)]
pub struct View {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Nothing may write it.
    pub(crate) frozen: bool,
    dtype: DType,
}

impl View {
    pub(crate) fn new(buffer: Arc<Buffer>, dtype: DType, bytes: u64) -> Self {
        View { buffer, offset: 0, bytes, frozen: false, dtype }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.bytes / self.dtype.size() as u64
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether it covers its buffer.
    pub fn is_whole(&self) -> bool {
        self.offset == 0 && self.bytes == self.buffer.bytes
    }

    pub(crate) fn overlaps(&self, other: &View) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }

    /// The operation that left the buffer's contents undefined, if one did.
    pub fn tainted_by(&self) -> Option<&'static str> {
        self.buffer.tainted_by()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} x {} in buffer {} of {})", self.len(), self.dtype, self.buffer.id, self.buffer.memory.label)
    }
}

/// `len` elements of `T` in device memory. Clones share the memory; it is freed with the last.
///
/// The handle survives the worker: after a fail-over it names the same contents, unless an
/// operation was writing them ([`GpuError::GpuRefStale`]).
pub struct GpuRef<T> {
    view: View,
    element: PhantomData<T>,
}

impl<T> Clone for GpuRef<T> {
    fn clone(&self) -> Self {
        GpuRef { view: self.view.clone(), element: PhantomData }
    }
}

impl<T> fmt::Debug for GpuRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuRef({:?})", self.view)
    }
}

impl<T: CudaDtype> GpuRef<T> {
    pub(crate) fn new(buffer: Arc<Buffer>, len: usize) -> Self {
        let bytes = (len * size_of::<T>()) as u64;
        GpuRef { view: View::new(buffer, T::DTYPE, bytes), element: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.view.len() as usize
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The range without its type, as operations take it.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// The generation of the device in which the buffer was made.
    pub fn generation(&self) -> u64 {
        self.view.buffer.generation
    }

    /// A part of it, by element index; it shares the memory.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] when the range does not lie inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let len = self.len();
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => len,
        };
        if start >= end || end > len {
            let reason = format!("{start}..{end} of {len} elements");
            return Err(GpuError::invalid("GpuRef::slice", "range", reason));
        }
        let mut view = self.view.clone();
        view.offset += (start * size_of::<T>()) as u64;
        view.bytes = ((end - start) * size_of::<T>()) as u64;
        Ok(GpuRef { view, element: PhantomData })
    }
}

impl<T: CudaDtype> From<&GpuRef<T>> for View {
    fn from(buffer: &GpuRef<T>) -> View {
        buffer.view()
    }
}
