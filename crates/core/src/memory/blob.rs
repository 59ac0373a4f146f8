//! Bytes that go with operations and outlive workers.

use std::fmt;

use crate::dtype::DType;
use crate::memory::HostBuf;

use super::View;

/// Immutable bytes in pinned host memory, for what is too large to be a parameter and must survive
/// the worker: a program's code, a recorded graph. An operation takes it as an argument that it
/// reads; the executor half sees the bytes themselves
/// ([`CudaCall::host_bytes`](crate::executor::CudaCall::host_bytes)). Clones share the memory.
#[derive(Clone)]
pub struct Blob {
    view: View,
    len: usize,
}

impl Blob {
    pub(crate) fn new(mut host: HostBuf<u8>, bytes: &[u8]) -> Self {
        host[..bytes.len()].copy_from_slice(bytes);
        let mut view = host.view();
        view.frozen = true;
        Blob { view, len: bytes.len() }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The range without its type, as operations take it.
    pub fn view(&self) -> View {
        debug_assert_eq!(self.view.dtype(), DType::U8);
        self.view.clone()
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.len)
    }
}
