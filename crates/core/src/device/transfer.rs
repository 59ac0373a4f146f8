//! Core's own operations: copies between buffers, host and device, and fills.

use serde::{Deserialize, Serialize};

use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::memory::HostBuf;
use crate::operation::{Argument, Arguments, BufferShape, LibraryId, Operation};

/// Copies `source` to `destination`, which has the same type and length (`cuMemcpyAsync`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Copy;

impl Operation for Copy {
    type Output = ();
    const NAME: &'static str = "core.copy";
    const LIBRARY: LibraryId = LibraryId::CORE;
    const CODE: u16 = 0;

    fn arguments(&self) -> Arguments {
        [Argument::read("source"), Argument::write("destination")].into_iter().collect()
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_copy(Self::NAME, buffers)
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

fn check_copy(operation: &str, buffers: &[BufferShape]) -> Result<()> {
    let [source, destination] = buffers else {
        return Err(GpuError::invalid(operation, "buffers", "two are needed"));
    };
    destination.expect_dtype(operation, source.dtype)?;
    if source.len != destination.len {
        return Err(GpuError::ShapeMismatch {
            operation: operation.into(),
            argument: "destination".into(),
            needed: source.len,
            found: destination.len,
        });
    }
    Ok(())
}

/// A copy that gives the host buffer back: what [`Device::copy_to_host`](super::Device::copy_to_host)
/// and [`Device::copy_from_host`](super::Device::copy_from_host) submit.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct HostCopy<T: CudaDtype> {
    /// The host buffer, which the front keeps for the caller.
    #[serde(skip)]
    pub(crate) host: Option<HostBuf<T>>,
}

impl<T: CudaDtype> Operation for HostCopy<T> {
    type Output = HostBuf<T>;
    const NAME: &'static str = "core.copy";
    const LIBRARY: LibraryId = LibraryId::CORE;
    const CODE: u16 = Copy::CODE;

    fn arguments(&self) -> Arguments {
        Copy.arguments()
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        check_copy(Self::NAME, buffers)
    }

    fn output(self, _reply: &[u8]) -> Result<HostBuf<T>> {
        self.host.ok_or_else(|| GpuError::invalid(Self::NAME, "host", "the host buffer was not given"))
    }
}

/// Sets every element of `destination` to one value (`cuMemsetD*Async`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fill {
    /// The element's bytes, in the first `size` of these.
    pub pattern: [u8; 16],
    /// Bytes of one element: 1, 2, 4, 8 or 16.
    pub size: u8,
}

impl Fill {
    /// A fill with `value`.
    pub fn new<T: CudaDtype>(value: T) -> Self {
        let mut pattern = [0; 16];
        pattern[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        Fill { pattern, size: size_of::<T>() as u8 }
    }

    pub(crate) fn pattern_bytes(&self) -> &[u8] {
        &self.pattern[..usize::from(self.size).clamp(1, 16)]
    }
}

impl Operation for Fill {
    type Output = ();
    const NAME: &'static str = "core.fill";
    const LIBRARY: LibraryId = LibraryId::CORE;
    const CODE: u16 = 1;

    fn arguments(&self) -> Arguments {
        [Argument::write("destination")].into_iter().collect()
    }

    fn check(&self, buffers: &[BufferShape]) -> Result<()> {
        match buffers {
            [destination] if destination.dtype.size() == self.size as usize => Ok(()),
            [destination] => {
                let reason = format!("{} bytes for an element of {}", self.size, destination.dtype);
                Err(GpuError::invalid(Self::NAME, "value", reason))
            }
            _ => Err(GpuError::invalid(Self::NAME, "buffers", "one is needed")),
        }
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}
