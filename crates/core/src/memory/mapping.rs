//! Shared memory: sealed `memfd`s and their mappings.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{GpuError, Result};

/// A shared, readable and writable mapping of a file descriptor, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is memory; it belongs to no thread. Access goes through atomics or through
// ranges that one owner holds at a time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `fd`.
    pub fn new(fd: impl AsFd, bytes: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; it aliases no Rust object.
        let ptr = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        }
        .map_err(|e| GpuError::io(format!("mmap of {bytes} bytes"), e))?;
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| GpuError::io("mmap", rustix::io::Errno::NOMEM))?;
        Ok(Mapping { ptr, bytes })
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and whoever holds a pointer into it also holds the
        // mapping.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.bytes) };
    }
}

/// An anonymous file of `bytes`, sealed so that nobody who holds it can shrink it under a reader.
pub(crate) fn sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| GpuError::io("memfd_create", e))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|e| GpuError::io(format!("memfd of {bytes} bytes"), e))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|e| GpuError::io("sealing a memfd", e))?;
    Ok(fd)
}
