//! Core's own operations on the CPU: copies and fills.

use crate::device::{Copy, Fill};
use crate::error::Result;
use crate::executor::{Step, unknown_operation};
use crate::operation::{LibraryId, Operation};

use super::HostCall;

pub(super) fn run(call: &mut HostCall<'_>) -> Result<Step> {
    match call.code() {
        Copy::CODE => {
            let source = call.raw_read(0)?;
            let destination = call.raw_write(1)?;
            let bytes = source.len().min(destination.len());
            destination[..bytes].copy_from_slice(&source[..bytes]);
        }
        Fill::CODE => {
            let fill: Fill = call.params()?;
            let destination = call.raw_write(0)?;
            let pattern = fill.pattern_bytes();
            if pattern.iter().all(|byte| *byte == pattern[0]) {
                destination.fill(pattern[0]);
            } else {
                for element in destination.chunks_exact_mut(pattern.len()) {
                    element.copy_from_slice(pattern);
                }
            }
        }
        #[cfg(feature = "fault")]
        crate::worker::fault::FaultOp::CODE => {
            let op: crate::worker::fault::FaultOp = call.params()?;
            crate::worker::fault::strike(op.fault);
        }
        code => return Err(unknown_operation(LibraryId::CORE, code)),
    }
    Ok(Step::Done)
}
