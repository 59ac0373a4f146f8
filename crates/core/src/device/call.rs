//! A call: an operation, its buffers, and how it is to be sent.

use std::future::IntoFuture;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::completion::Pending;
use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::memory::View;
use crate::operation::Operation;

use super::handle::Device;
use super::messages::Reply;
use super::streams::Priority;
use super::transfer::HostCopy;

/// An operation with its buffers, ready to be sent to a device.
///
/// Libraries give it option methods through extension traits; every call can be
/// [`submit`](Call::submit)ted, awaited, or [`wait`](Call::wait)ed for.
#[derive(Debug, Clone)]
#[must_use = "a call does nothing until it is submitted, awaited or waited for"]
pub struct Call<O> {
    /// The parameters.
    pub operation: O,
    pub(crate) device: Device,
    pub(crate) buffers: Buffers,
    pub(crate) options: CallOptions,
}

/// The buffers of one call, in the order of the operation's arguments.
pub type Buffers = SmallVec<[View; 4]>;

/// How a call is to be sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallOptions {
    pub deadline: Option<Duration>,
    pub priority: Priority,
    pub client: u32,
}

impl<O: Operation> Call<O> {
    /// A call of `operation` on `device` with `buffers` in the order of its arguments.
    pub fn new(device: &Device, operation: O, buffers: impl IntoIterator<Item = View>) -> Self {
        Call {
            operation,
            device: device.clone(),
            buffers: buffers.into_iter().collect(),
            options: CallOptions { client: device.client, ..CallOptions::default() },
        }
    }

    /// Adds a buffer argument after the ones already there (optional arguments).
    pub fn with_buffer(mut self, buffer: impl Into<View>) -> Self {
        self.buffers.push(buffer.into());
        self
    }

    /// Replaces or adds parameters: `call.map(|op| Gemm { alpha: 2.0, ..op })`.
    pub fn map(mut self, change: impl FnOnce(O) -> O) -> Self {
        self.operation = change(self.operation);
        self
    }

    /// The buffers given so far.
    pub fn buffers(&self) -> &[View] {
        &self.buffers
    }

    /// Time from submission to completion. An operation that is still waiting then is taken out of
    /// the queue; one that was sent costs the worker its life, since nothing else stops a kernel.
    /// Overrides [`DeviceConfig::deadline`](super::DeviceConfig::deadline).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// Which streams it may run on, where the device's
    /// [`StreamPolicy`](super::StreamPolicy) has such of high priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// As [`submit`](Call::submit), but waits for room where the queue is full. The result is the
    /// submitted operation, which may be awaited in turn.
    ///
    /// # Errors
    /// As [`submit`](Call::submit), except [`GpuError::Busy`](crate::GpuError::Busy).
    pub async fn submit_when_free(self) -> Result<Pending<O>>
    where
        O: Clone,
    {
        let front = self.device.state.front.clone();
        loop {
            let room = front.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.clone().submit() {
                Err(GpuError::Busy { .. }) => room.await,
                other => return other,
            }
        }
    }

    /// Checks the call and queues it, in order. The result may be awaited, waited for, or ignored:
    /// the next operation may use it without waiting.
    ///
    /// # Errors
    /// Everything that can be known before anything runs: shapes, types, aliasing, stale buffers, a
    /// full queue ([`GpuError::Busy`](crate::GpuError::Busy)), a failed device. Nothing was queued
    /// then.
    pub fn submit(self) -> Result<Pending<O>> {
        self.device.clone().submit(self)
    }

    /// Submits and blocks the thread until the operation has finished; not for async contexts.
    pub fn wait(self) -> Result<O::Output> {
        self.submit()?.wait()
    }

    /// Submits and sends the result to `reply` when there is one. Every outcome is sent.
    pub fn reply_to(self, reply: oneshot::Sender<Result<O::Output>>) {
        match self.submit() {
            Ok(pending) => pending.forward(reply),
            Err(error) => drop(reply.send(Err(error))),
        }
    }
}

impl<O: Operation> IntoFuture for Call<O> {
    type Output = Result<O::Output>;
    type IntoFuture = Pending<O>;

    fn into_future(self) -> Pending<O> {
        self.submit().unwrap_or_else(Pending::failed)
    }
}

impl<T: CudaDtype> Call<HostCopy<T>> {
    /// Copies only the first `len` elements of the host buffer, argument `index`.
    pub(crate) fn shorten_host(&mut self, len: usize, index: usize) -> Result<()> {
        if let Some(view) = self.buffers.get_mut(index) {
            view.bytes = (len * size_of::<T>()) as u64;
        }
        Ok(())
    }
}

/// A library call as an actor message: the call and where its result goes. If the actor ends before
/// it serves the request, the reply is a typed error.
pub struct Request<O: Operation> {
    inner: Option<(Call<O>, Reply<O::Output>)>,
}

impl<O: Operation> Request<O> {
    /// A request and the receiver of its result.
    pub fn new(call: Call<O>) -> (Self, oneshot::Receiver<Result<O::Output>>) {
        let (reply, result) = oneshot::channel();
        (Self::with_reply(call, reply), result)
    }

    /// A request that answers to `reply`.
    pub fn with_reply(call: Call<O>, reply: oneshot::Sender<Result<O::Output>>) -> Self {
        Request { inner: Some((call, reply)) }
    }

    /// The call's buffers.
    pub fn buffers(&self) -> &[View] {
        self.inner.as_ref().map_or(&[], |(call, _)| call.buffers())
    }

    /// Checks, submits and replies; what a library's actor does with every message.
    pub fn serve(mut self) {
        if let Some((call, reply)) = self.inner.take() {
            call.reply_to(reply);
        }
    }
}

impl<O: Operation> Drop for Request<O> {
    fn drop(&mut self) {
        if let Some((call, reply)) = self.inner.take() {
            // Whoever asked may not wait any more.
            let _ = reply.send(Err(GpuError::ShutDown { device: call.device.label() }));
        }
    }
}
