//! What a library's host half is given.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::dtype::{CudaDtype, DType};
use crate::error::{GpuError, Result};
use crate::executor::{SideTask, Step};
use crate::operation::{Access, LibraryId, Operation};
use crate::registry;

/// A library's half on the CPU. One instance lives on each stream's thread.
pub trait HostLibrary: Send {
    /// Carries out one operation.
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step>;
}

/// What a host half may know when it is made.
#[derive(Debug, Clone)]
pub struct HostSetup {
    /// Threads that a large operation may use.
    pub threads: usize,
}

/// One operation to carry out on the CPU.
pub struct HostCall<'a> {
    library: LibraryId,
    code: u16,
    params: &'a [u8],
    buffers: &'a [HostBuffer],
    taken: Cell<u64>,
    reply: Vec<u8>,
    _memory: PhantomData<&'a mut [u8]>,
}

/// A resolved buffer: a range of a segment mapped into this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostBuffer {
    pub ptr: *mut u8,
    pub bytes: usize,
    pub dtype: DType,
    pub access: Access,
}

impl<'a> HostCall<'a> {
    /// # Safety
    /// Each buffer's range must be mapped, readable and writable for `'a`, and used by nothing else
    /// in this process for `'a`, except by other calls that also only read it.
    pub(crate) unsafe fn new(
        library: LibraryId,
        code: u16,
        params: &'a [u8],
        buffers: &'a [HostBuffer],
    ) -> Result<Self> {
        let range = |b: &HostBuffer| (b.ptr as usize)..(b.ptr as usize + b.bytes);
        for (i, a) in buffers.iter().enumerate() {
            for b in &buffers[i + 1..] {
                let overlap = range(a).start < range(b).end && range(b).start < range(a).end;
                if overlap && (a.access.writes() || b.access.writes()) {
                    let name = registry::operation_name(library, code);
                    let reason = format!("{name}: a written buffer overlaps another");
                    return Err(GpuError::Protocol { side: "front".into(), reason });
                }
            }
        }
        Ok(HostCall { library, code, params, buffers, taken: Cell::new(0), reply: Vec::new(), _memory: PhantomData })
    }

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

    /// Buffer `index` for reading.
    pub fn read<T: CudaDtype>(&self, index: usize) -> Result<&'a [T]> {
        let buffer = self.typed::<T>(index)?;
        if buffer.access.writes() {
            self.take(index)?;
        }
        let len = buffer.bytes / size_of::<T>();
        // SAFETY: `new`'s contract gives the range for `'a`; `typed` checked type and alignment; a
        // written buffer is handed out once (`take`), a read one is never handed out mutably.
        Ok(unsafe { std::slice::from_raw_parts(buffer.ptr.cast::<T>(), len) })
    }

    /// Buffer `index` for writing; only for arguments that the operation writes, once a call.
    pub fn write<T: CudaDtype>(&self, index: usize) -> Result<&'a mut [T]> {
        let buffer = self.typed::<T>(index)?;
        if !buffer.access.writes() {
            return Err(self.violation(format!("buffer {index} is read-only")));
        }
        self.take(index)?;
        let len = buffer.bytes / size_of::<T>();
        // SAFETY: as in `read`; `new` made sure that no other buffer overlaps a written one and
        // `take` that this one is handed out once.
        Ok(unsafe { std::slice::from_raw_parts_mut(buffer.ptr.cast::<T>(), len) })
    }

    /// Buffer `index` as bytes, whatever its type.
    pub(crate) fn raw_read(&self, index: usize) -> Result<&'a [u8]> {
        let buffer = self.buffer(index)?;
        if buffer.access.writes() {
            self.take(index)?;
        }
        // SAFETY: as in `read`; bytes have no alignment.
        Ok(unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.bytes) })
    }

    /// Buffer `index` as bytes for writing, whatever its type.
    pub(crate) fn raw_write(&self, index: usize) -> Result<&'a mut [u8]> {
        let buffer = self.buffer(index)?;
        if !buffer.access.writes() {
            return Err(self.violation(format!("buffer {index} is read-only")));
        }
        self.take(index)?;
        // SAFETY: as in `write`; bytes have no alignment.
        Ok(unsafe { std::slice::from_raw_parts_mut(buffer.ptr, buffer.bytes) })
    }

    /// Sends `value` back as (the next part of) the operation's reply.
    pub fn reply<T: bytemuck::NoUninit>(&mut self, value: T) {
        self.reply.extend_from_slice(bytemuck::bytes_of(&value));
    }

    /// Sends bytes back.
    pub fn reply_bytes(&mut self, bytes: &[u8]) {
        self.reply.extend_from_slice(bytes);
    }

    /// Asks for `task` to run on a side thread and for this call to be made again afterwards.
    pub fn later(&self, task: impl FnOnce() -> Result<()> + Send + 'static) -> Step {
        Step::Later(Box::new(task) as SideTask)
    }

    pub(crate) fn into_reply(self) -> Vec<u8> {
        self.reply
    }

    fn buffer(&self, index: usize) -> Result<&'a HostBuffer> {
        self.buffers.get(index).ok_or_else(|| self.violation(format!("there is no buffer {index}")))
    }

    fn typed<T: CudaDtype>(&self, index: usize) -> Result<&'a HostBuffer> {
        let buffer = self.buffer(index)?;
        if buffer.dtype != T::DTYPE {
            return Err(self.violation(format!("buffer {index} is {}, not {}", buffer.dtype, T::DTYPE)));
        }
        if !(buffer.ptr as usize).is_multiple_of(align_of::<T>()) {
            return Err(self.violation(format!("buffer {index} is not aligned for {}", T::DTYPE)));
        }
        Ok(buffer)
    }

    fn take(&self, index: usize) -> Result<()> {
        let bit = 1u64.checked_shl(index as u32).unwrap_or(0);
        if bit == 0 || self.taken.get() & bit != 0 {
            return Err(self.violation(format!("buffer {index} was taken twice")));
        }
        self.taken.set(self.taken.get() | bit);
        Ok(())
    }

    fn violation(&self, reason: String) -> GpuError {
        GpuError::Protocol {
            side: "executor".into(),
            reason: format!("{}: {reason}", registry::operation_name(self.library, self.code)),
        }
    }
}
