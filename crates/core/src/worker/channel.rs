//! The control channel: a Unix socket that carries messages with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{GpuError, Result};
use crate::executor::backend::{StartConfig, WorkerInfo};
use crate::memory::Space;

/// Front to worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// The first message; carries the shared page.
    Start(StartConfig),
    /// Make a device segment; answered with `SegmentCreated`.
    CreateSegment { request: u64, id: u32, bytes: u64 },
    /// Map a segment; carries its descriptor.
    MapSegment { id: u32, space: Space, bytes: u64 },
    /// Unmap segments.
    DropSegments { ids: Vec<u32> },
    /// Answered with `Memory`.
    QueryMemory { request: u64 },
    /// Carry out an operation of this kind on scratch memory, when there is nothing else to do.
    Rehearse { record: Vec<u64> },
    /// Finish what was sent and end.
    Shutdown,
}

/// Worker to front.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// The executor is up. In the application's own process it says where its context and streams are.
    Ready { info: WorkerInfo, raw: Option<RawHandles> },
    /// The executor could not start.
    StartFailed(GpuError),
    /// Carries the segment's descriptor when it succeeded.
    SegmentCreated { request: u64, result: std::result::Result<(), GpuError> },
    /// Free and total bytes.
    Memory { request: u64, result: std::result::Result<(u64, u64), GpuError> },
    /// A segment could not be mapped: operations on it will fail.
    MapFailed { id: u32, error: GpuError },
    /// The worker is about to end because of this error.
    Dying(GpuError),
}

/// Addresses of the context and its streams.
pub(crate) type RawHandles = (u64, Vec<u64>);

const MAX_MESSAGE: usize = 256 << 10;

/// One end of the control channel; messages keep their bounds.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// A connected pair: the front's end, and the worker's.
    pub fn pair() -> Result<(Channel, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| GpuError::io("socketpair", e))?;
        Ok((Channel { socket: ours }, theirs))
    }

    pub fn from_fd(socket: OwnedFd) -> Self {
        Channel { socket }
    }

    /// Sends a message, with a descriptor where the message carries one.
    pub fn send(&self, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let bytes = postcard::to_allocvec(message)
            .map_err(|e| GpuError::Protocol { side: "front".into(), reason: format!("does not encode: {e}") })?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|e| GpuError::io("sending on the control channel", e))?;
        Ok(())
    }

    /// The next message and its descriptor. `Ok(None)`: nothing there (`wait` false), or the other
    /// end is closed (`wait` true).
    pub fn receive<M: DeserializeOwned>(&self, wait: bool) -> Result<Received<M>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let read = match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(read) => read.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return Ok(Received::Nothing);
            }
            Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => {
                return Ok(Received::Closed);
            }
            Err(e) => return Err(GpuError::io("receiving on the control channel", e)),
        };
        let mut fd = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.into_iter().next();
            }
        }
        if read == 0 {
            return Ok(Received::Closed);
        }
        let message = postcard::from_bytes(&bytes[..read]).map_err(|e| GpuError::Protocol {
            side: "other end of the control channel".into(),
            reason: format!("a message of {read} bytes does not decode: {e}"),
        })?;
        Ok(Received::Message(message, fd))
    }
}

/// What a receive found.
pub(crate) enum Received<M> {
    Message(M, Option<OwnedFd>),
    Nothing,
    Closed,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
