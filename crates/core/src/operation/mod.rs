//! The contract between libraries and the device: an operation as data.
//!
//! An [`Operation`] is a plain struct of parameters. Its buffers travel beside it, in the order of
//! its [`arguments`](Operation::arguments). It checks itself in the front, before anything is
//! queued; the executor half of its library carries it out. Nothing here knows an actor or CUDA.

mod library;

use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use crate::dtype::{CudaDtype, DType};
use crate::error::{GpuError, Result};

pub use library::{EnabledLibraries, LibraryId};

/// A library operation: parameters as plain data.
///
/// The struct itself is serialised and sent to the executor; buffers are passed beside it. From
/// this one property follow process isolation, replay after a fail-over and graph capture.
pub trait Operation: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What the caller gets back.
    type Output: Send + 'static;

    /// `library.operation`, as it appears in errors: `"cublas.gemm"`.
    const NAME: &'static str;
    /// The library that carries it out.
    const LIBRARY: LibraryId;
    /// The operation's number within its library.
    const CODE: u16;
    /// Number and name, as the registry lists them.
    const ID: (u16, &'static str) = (Self::CODE, Self::NAME);
    /// Where it runs.
    const LANE: Lane = Lane::Stream;

    /// Whether a spare worker may carry it out beforehand, on zeroed scratch memory in place of its
    /// buffers, to have kernels and plans ready. Not for operations whose inputs decide where they
    /// write.
    const REHEARSE: bool = true;

    /// The buffers it takes, in order, with how each is used under these parameters.
    fn arguments(&self) -> Arguments;

    /// Checks parameters against the buffers that were given, before anything is queued.
    ///
    /// The device itself has checked that the number of buffers is right, that they live on it, and
    /// (afterwards) that no output overlaps another argument.
    fn check(&self, buffers: &[BufferShape]) -> Result<()>;

    /// Bytes of the value that comes back, at most [`MAX_REPLY_BYTES`].
    fn reply_bytes(&self) -> usize {
        0
    }

    /// Turns the executor's reply into the output. `reply` holds `reply_bytes` bytes, or, in
    /// [`Lane::Side`], as many as the executor sent.
    fn output(self, reply: &[u8]) -> Result<Self::Output>;
}

/// The largest reply of an operation in [`Lane::Stream`].
pub const MAX_REPLY_BYTES: usize = 256;

/// Where an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// In order on a stream.
    Stream,
    /// On a side thread of the executor, ordered with nothing: compiling, inspecting.
    Side,
}

/// How an operation uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Access {
    /// Its contents are read.
    Read = 0,
    /// Every element of the given range is overwritten; the old contents do not matter.
    Write = 1,
    /// It is read and written, or written in part.
    ReadWrite = 2,
}

impl Access {
    /// Whether old contents matter.
    pub const fn reads(self) -> bool {
        !matches!(self, Access::Write)
    }

    /// Whether it changes the buffer.
    pub const fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }

    pub(crate) const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Access::Read),
            1 => Some(Access::Write),
            2 => Some(Access::ReadWrite),
            _ => None,
        }
    }
}

/// A buffer argument: its name and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// The name that errors use.
    pub name: &'static str,
    /// How it is used.
    pub access: Access,
}

/// The arguments of one operation.
pub type Arguments = SmallVec<[Argument; 4]>;

impl Argument {
    /// An argument that is read.
    pub const fn read(name: &'static str) -> Self {
        Argument { name, access: Access::Read }
    }

    /// An argument that is overwritten whole.
    pub const fn write(name: &'static str) -> Self {
        Argument { name, access: Access::Write }
    }

    /// An argument that is read and written, or written in part.
    pub const fn read_write(name: &'static str) -> Self {
        Argument { name, access: Access::ReadWrite }
    }
}

/// What an operation may know of a buffer when it checks itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferShape {
    /// The argument's name.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub len: u64,
}

impl BufferShape {
    /// Requires element type `expected`.
    pub fn expect_dtype(&self, operation: &str, expected: DType) -> Result<()> {
        if self.dtype == expected {
            return Ok(());
        }
        Err(GpuError::DTypeMismatch {
            operation: operation.into(),
            argument: self.name.into(),
            expected,
            found: self.dtype,
        })
    }

    /// Requires at least `needed` elements.
    pub fn expect_len(&self, operation: &str, needed: u64) -> Result<()> {
        if self.len >= needed {
            return Ok(());
        }
        Err(GpuError::ShapeMismatch {
            operation: operation.into(),
            argument: self.name.into(),
            needed,
            found: self.len,
        })
    }
}

/// Multiplies sizes; an overflow is an error that names the factors.
pub fn checked_product(operation: &str, argument: &str, factors: &[u64]) -> Result<u64> {
    factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor)).ok_or_else(|| {
        GpuError::SizeOverflow {
            operation: operation.into(),
            argument: argument.into(),
            expression: factors.iter().map(u64::to_string).collect::<Vec<_>>().join(" * "),
        }
    })
}

/// The elements that a strided matrix spans: `count` vectors of `inner` elements, `stride` apart.
///
/// Zero when either extent is zero, else `(count - 1) * stride + inner`.
pub fn strided_extent(operation: &str, argument: &str, count: u64, stride: u64, inner: u64) -> Result<u64> {
    if count == 0 || inner == 0 {
        return Ok(0);
    }
    let overflow = || GpuError::SizeOverflow {
        operation: operation.into(),
        argument: argument.into(),
        expression: format!("({count} - 1) * {stride} + {inner}"),
    };
    (count - 1).checked_mul(stride).and_then(|n| n.checked_add(inner)).ok_or_else(overflow)
}

/// Reads a plain value from an operation's reply.
pub fn reply_value<T: CudaDtype>(operation: &str, reply: &[u8]) -> Result<T> {
    reply.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned).ok_or_else(|| GpuError::Protocol {
        side: "worker".into(),
        reason: format!("{operation}: the reply has {} bytes, {} expected", reply.len(), size_of::<T>()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_errors_that_name_the_factors() {
        assert_eq!(checked_product("op", "a", &[3, 4]).unwrap(), 12);
        let error = checked_product("op", "a", &[u64::MAX, 2]).unwrap_err();
        assert!(error.to_string().contains("18446744073709551615 * 2"), "{error}");
        assert_eq!(strided_extent("op", "a", 3, 10, 4).unwrap(), 24);
        assert_eq!(strided_extent("op", "a", 0, 10, 4).unwrap(), 0);
        assert!(strided_extent("op", "a", u64::MAX, u64::MAX, 1).is_err());
    }
}
