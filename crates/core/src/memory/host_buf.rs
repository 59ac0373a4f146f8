//! Pinned host memory that application and worker share.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::dtype::CudaDtype;

use super::{Buffer, Mapping, View};

/// `len` elements of `T` in pinned host memory: copies from and to it run at full speed and touch
/// no other memory on the way. It reads and writes as a slice.
///
/// A copy takes the buffer and gives it back with its result, so nobody can look at it meanwhile.
pub struct HostBuf<T> {
    buffer: Arc<Buffer>,
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: CudaDtype> HostBuf<T> {
    /// `mapping` is the front's mapping of the segment that `buffer` lies in.
    pub(crate) fn new(buffer: Arc<Buffer>, mapping: Arc<Mapping>, len: usize) -> Self {
        let offset = buffer.location().1 as usize;
        assert!(offset + len * size_of::<T>() <= mapping.len(), "a buffer lies inside its segment");
        HostBuf { buffer, mapping, offset, len, element: PhantomData }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    /// Its bytes, for writing; every pattern is some element.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }

    /// The range without its type, as operations take it.
    pub(crate) fn view(&self) -> View {
        View::new(self.buffer.clone(), T::DTYPE, (self.len * size_of::<T>()) as u64)
    }
}

impl<T: CudaDtype> Deref for HostBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the range lies inside the mapping (`new`), which lives as long as `self`; blocks
        // start on multiples of 256 bytes, more than any element's alignment; every bit pattern is a
        // `T` (`Pod`); nobody writes it while the application holds the buffer.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(self.offset).cast(), self.len) }
    }
}

impl<T: CudaDtype> DerefMut for HostBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr().add(self.offset).cast(), self.len) }
    }
}

impl<T> fmt::Debug for HostBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuf({} elements)", self.len)
    }
}
