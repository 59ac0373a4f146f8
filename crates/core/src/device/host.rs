//! Pinned host memory: a pool that application and workers share.

use std::sync::Arc;

use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::memory::{Blob, Buffer, GpuRef, HostBuf, Mapping, Space, sealed_memfd};

use super::call::Call;
use super::handle::{Device, byte_len};
use super::transfer::HostCopy;

/// Pinned host memory is taken in pieces of at least this size.
const HOST_SEGMENT_BYTES: u64 = 64 << 20;

impl Device {
    /// `len` elements of pinned host memory, zero or with what was there before. It comes from a pool
    /// that grows by 64 MiB at a time and keeps what is given back, by size; larger buffers have memory
    /// of their own, which goes with them. New memory has to be registered with the driver, which takes
    /// some milliseconds.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for zero elements, [`GpuError::SizeOverflow`],
    /// [`GpuError::OutOfMemory`] beyond
    /// [`DeviceConfig::host_memory_limit`](super::DeviceConfig::host_memory_limit),
    /// [`GpuError::Io`] where the system has no memory left.
    pub fn host_buffer<T: CudaDtype>(&self, len: usize) -> Result<HostBuf<T>> {
        let bytes = byte_len::<T>(len)?;
        let front = self.front();
        if front.config.executor.is_none() {
            return Err(GpuError::Mock { operation: "core.host_buffer".into() });
        }
        if let Some(buffer) = front.memory.allocate(Space::Host, bytes) {
            return self.host_buf(buffer, len);
        }
        let _segments = self.state.segments.lock();
        let own = bytes.checked_next_multiple_of(4096).ok_or_else(|| GpuError::SizeOverflow {
            operation: "core.host_buffer".into(),
            argument: "len".into(),
            expression: format!("{bytes} bytes in pages of 4096"),
        })?;
        let whole = bytes > HOST_SEGMENT_BYTES / 2 || front.memory.check_host_limit(HOST_SEGMENT_BYTES).is_err();
        let segment_bytes = if whole { own } else { HOST_SEGMENT_BYTES };
        front.memory.check_host_limit(segment_bytes)?;
        let fd = Arc::new(sealed_memfd("atomr-cuda-host", segment_bytes)?);
        let mapping = Arc::new(Mapping::new(&*fd, segment_bytes as usize)?);
        let id = front.memory.new_segment_id();
        for link in front.reactor.links() {
            // A worker that cannot be told is found out by its channel.
            let _ = link.map_segment(Space::Host, id, segment_bytes, &fd);
        }
        let buffer =
            front.memory.install(Space::Host, id, segment_bytes, fd, Some(mapping.clone()), whole.then_some(bytes));
        match buffer.or_else(|| front.memory.allocate(Space::Host, bytes)) {
            Some(buffer) => self.host_buf(buffer, len),
            None => Err(GpuError::OutOfMemory { requested: bytes, free: 0, total: segment_bytes, limited: false }),
        }
    }

    /// Pinned host memory with the contents of `data`.
    ///
    /// # Errors
    /// As [`Device::host_buffer`].
    pub fn host_buffer_from<T: CudaDtype>(&self, data: &[T]) -> Result<HostBuf<T>> {
        let mut host = self.host_buffer(data.len())?;
        host.copy_from_slice(data);
        Ok(host)
    }

    /// Gives pinned host memory that nothing uses back to the system. How much there is says
    /// [`DeviceLoad`](super::DeviceLoad).
    pub fn trim_host_memory(&self) {
        let _segments = self.state.segments.lock();
        self.front().memory.trim_host();
    }

    /// Immutable bytes that operations may name and that outlive workers.
    ///
    /// # Errors
    /// As [`Device::host_buffer`]; also for no bytes at all.
    pub fn blob(&self, bytes: &[u8]) -> Result<Blob> {
        Ok(Blob::new(self.host_buffer(bytes.len())?, bytes))
    }

    fn host_buf<T: CudaDtype>(&self, buffer: Arc<Buffer>, len: usize) -> Result<HostBuf<T>> {
        let mapping = self.front().memory.mapping(buffer.location().0);
        let mapping = mapping.ok_or_else(|| GpuError::io("a host segment", rustix::io::Errno::FAULT))?;
        Ok(HostBuf::new(buffer, mapping, len))
    }

    /// Copies device memory into pinned host memory, which comes back as the result.
    pub fn copy_to_host<T: CudaDtype>(&self, source: &GpuRef<T>, host: HostBuf<T>) -> Call<HostCopy<T>> {
        let buffers = [source.view(), host.view()];
        Call::new(self, HostCopy { host: Some(host) }, buffers)
    }

    /// Copies pinned host memory to the device; the host buffer comes back as the result.
    pub fn copy_from_host<T: CudaDtype>(&self, host: HostBuf<T>, destination: &GpuRef<T>) -> Call<HostCopy<T>> {
        let buffers = [host.view(), destination.view()];
        Call::new(self, HostCopy { host: Some(host) }, buffers)
    }
}
