//! What a library's CUDA half is given.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::executor::{SideTask, Step};
use crate::operation::{Access, LibraryId, Operation};
use crate::registry;

use super::scratch::Scratch;

/// A library's half on the GPU. It lives on the enqueue thread, with the device's context current.
///
/// Nothing in it may wait for the GPU: no synchronising call, no scalar read back. Values go to the
/// reply slot ([`CudaCall::reply_ptr`]), which the GPU writes and the front reads.
pub trait CudaLibrary {
    /// Enqueues one operation on the call's stream.
    fn enqueue(&mut self, call: &mut CudaCall<'_>) -> Result<Step>;

    /// The library's version, as it reports it.
    fn version(&self) -> String {
        String::new()
    }
}

/// What a CUDA half may know when it is made. The context is current on the calling thread.
#[derive(Debug, Clone)]
pub struct CudaSetup {
    /// The device's ordinal.
    pub ordinal: i32,
    /// Compute capability: major, minor.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// The device's name, as the driver reports it.
    pub device_name: Arc<str>,
    /// The driver's CUDA version, as `13000`.
    pub driver_version: i32,
}

/// A resolved buffer: a range of device (or registered host) memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CudaBuffer {
    pub ptr: CUdeviceptr,
    /// The same byte as the processor sees it; null for device memory.
    pub host: *const u8,
    pub bytes: u64,
    pub dtype: DType,
    pub access: Access,
}

impl CudaBuffer {
    /// The bytes themselves, where they are in host memory that nothing writes.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        if self.host.is_null() || self.access.writes() {
            return None;
        }
        // SAFETY: the range lies in a live mapping, as the backend has checked; the front keeps it
        // mapped and unwritten while the operation is in flight.
        Some(unsafe { std::slice::from_raw_parts(self.host, self.bytes as usize) })
    }
}

/// One operation to enqueue.
pub struct CudaCall<'a> {
    pub(crate) library: LibraryId,
    pub(crate) code: u16,
    pub(crate) params: &'a [u8],
    pub(crate) buffers: &'a [CudaBuffer],
    pub(crate) stream: CUstream,
    pub(crate) stream_index: usize,
    pub(crate) reply_ptr: Option<CUdeviceptr>,
    pub(crate) reply: Vec<u8>,
    pub(crate) scratch: &'a mut Scratch,
}

impl CudaCall<'_> {
    /// The operation's number in its library.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// The operation's parameters.
    pub fn params<O: Operation>(&self) -> Result<O> {
        postcard::from_bytes(self.params).map_err(|error| GpuError::Protocol {
            side: "front".into(),
            reason: format!("{}: parameters do not decode: {error}", O::NAME),
        })
    }

    /// How many buffers came with it.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The element type of buffer `index`.
    pub fn dtype(&self, index: usize) -> Result<DType> {
        Ok(self.buffer(index)?.dtype)
    }

    /// The device address of buffer `index`.
    pub fn ptr(&self, index: usize) -> Result<CUdeviceptr> {
        Ok(self.buffer(index)?.ptr)
    }

    /// The bytes of buffer `index`.
    pub fn bytes(&self, index: usize) -> Result<u64> {
        Ok(self.buffer(index)?.bytes)
    }

    /// The contents of buffer `index`, where it is a [`Blob`](crate::Blob): pinned host memory that
    /// nothing writes.
    ///
    /// # Errors
    /// For device memory, and for a buffer that the operation may write.
    pub fn host_bytes(&self, index: usize) -> Result<&[u8]> {
        let violation = || self.violation(format!("buffer {index} is not read-only host memory"));
        self.buffer(index)?.host_bytes().ok_or_else(violation)
    }

    /// How buffer `index` is used.
    pub fn access(&self, index: usize) -> Result<Access> {
        Ok(self.buffer(index)?.access)
    }

    /// The stream to enqueue on.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// The stream's number on this device: handles and workspaces are kept a stream.
    pub fn stream_index(&self) -> usize {
        self.stream_index
    }

    /// The device address of the reply slot: pinned memory that the front reads when the operation
    /// has finished. `None` when the operation has no reply.
    pub fn reply_ptr(&self) -> Result<CUdeviceptr> {
        self.reply_ptr.ok_or_else(|| self.violation("there is no reply slot".into()))
    }

    /// Sends bytes back from the enqueue thread itself; for operations in
    /// [`Lane::Side`](crate::operation::Lane::Side).
    pub fn reply_bytes(&mut self, bytes: &[u8]) {
        self.reply.extend_from_slice(bytes);
    }

    /// Temporary device memory of at least `bytes`, 256-byte aligned, valid for work enqueued by
    /// this call on its stream. Two requests in one call give two areas.
    pub fn scratch(&mut self, bytes: u64) -> Result<CUdeviceptr> {
        self.scratch.get(self.stream, bytes)
    }

    /// Asks for `task` to run on a side thread, with the context current there, and for this call to
    /// be made again afterwards.
    pub fn later(&self, task: impl FnOnce() -> Result<()> + Send + 'static) -> Step {
        Step::Later(Box::new(task) as SideTask)
    }

    fn buffer(&self, index: usize) -> Result<&CudaBuffer> {
        self.buffers.get(index).ok_or_else(|| self.violation(format!("there is no buffer {index}")))
    }

    fn violation(&self, reason: String) -> GpuError {
        GpuError::Protocol {
            side: "executor".into(),
            reason: format!("{}: {reason}", registry::operation_name(self.library, self.code)),
        }
    }
}
