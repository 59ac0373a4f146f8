//! Core's own operations on the GPU: copies and fills.

use cudarc::driver::sys;

use crate::device::{Copy, Fill};
use crate::error::Result;
use crate::executor::{Step, unknown_operation};
use crate::operation::{LibraryId, Operation};

use super::CudaCall;
use super::driver::check_driver;

pub(super) fn enqueue(call: &mut CudaCall<'_>) -> Result<Step> {
    match call.code() {
        Copy::CODE => {
            let bytes = call.bytes(0)?.min(call.bytes(1)?) as usize;
            // SAFETY: both ranges lie in mapped segments, as the backend has checked.
            let status = unsafe { sys::cuMemcpyAsync(call.ptr(1)?, call.ptr(0)?, bytes, call.stream()) };
            check_driver("cuMemcpyAsync", status)?;
        }
        Fill::CODE => {
            let fill: Fill = call.params()?;
            let pattern = fill.pattern_bytes();
            let (ptr, bytes, stream) = (call.ptr(0)?, call.bytes(0)? as usize, call.stream());
            let count = bytes / pattern.len();
            let word = |at: usize| u32::from_le_bytes([pattern[at], pattern[at + 1], pattern[at + 2], pattern[at + 3]]);
            let words = pattern.len() / 4;
            if pattern.iter().all(|byte| *byte == pattern[0]) {
                // SAFETY: the range lies in a mapped segment, as the backend has checked; so below.
                check_driver("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(ptr, pattern[0], bytes, stream) })?;
            } else if pattern.len() == 2 {
                let value = u16::from_le_bytes([pattern[0], pattern[1]]);
                // SAFETY: as above; elements are aligned to their size.
                check_driver("cuMemsetD16Async", unsafe { sys::cuMemsetD16Async(ptr, value, count, stream) })?;
            } else if (0..words).all(|i| word(4 * i) == word(0)) {
                // SAFETY: as above.
                check_driver("cuMemsetD32Async", unsafe {
                    sys::cuMemsetD32Async(ptr, word(0), count * words, stream)
                })?;
            } else {
                for i in 0..words {
                    let (at, pitch) = (ptr + 4 * i as u64, pattern.len());
                    // SAFETY: as above: `count` rows of one word, one element apart.
                    let status = unsafe { sys::cuMemsetD2D32Async(at, pitch, word(4 * i), 1, count, stream) };
                    check_driver("cuMemsetD2D32Async", status)?;
                }
            }
        }
        #[cfg(feature = "fault")]
        crate::worker::fault::FaultOp::CODE => super::fault::enqueue(call)?,
        code => return Err(unknown_operation(LibraryId::CORE, code)),
    }
    Ok(Step::Done)
}
