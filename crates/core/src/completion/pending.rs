//! A submitted operation as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{GpuError, Result};
use crate::operation::Operation;

use super::{Outcome, Progress, Ticket};

/// A submitted operation: a future of its output.
///
/// It always resolves, with a value or a typed error, whatever happens to the worker. Dropping it
/// without having awaited it leaves the operation in the stream. Dropping it while it is being
/// awaited takes the operation back if it was not sent yet; else it is left to finish, and its
/// buffers live that long.
#[must_use = "ignore the result with `drop` if the operation is only to be enqueued"]
pub struct Pending<O: Operation> {
    state: State<O>,
    awaited: bool,
}

enum State<O> {
    Submitted { ticket: Arc<Ticket>, device: Arc<dyn Progress>, operation: O, client: u32 },
    Failed(GpuError),
    Taken,
}

impl<O: Operation> Unpin for Pending<O> {}

impl<O: Operation> fmt::Debug for Pending<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({})", O::NAME)
    }
}

impl<O: Operation> Pending<O> {
    pub(crate) fn new(ticket: Arc<Ticket>, device: Arc<dyn Progress>, operation: O, client: u32) -> Self {
        Pending { state: State::Submitted { ticket, device, operation, client }, awaited: false }
    }

    /// An operation that was refused.
    pub(crate) fn failed(error: GpuError) -> Self {
        Pending { state: State::Failed(error), awaited: false }
    }

    /// Whether the outcome is there.
    pub fn is_finished(&self) -> bool {
        match &self.state {
            State::Submitted { ticket, device, .. } => {
                device.harvest();
                ticket.is_done()
            }
            State::Failed(_) | State::Taken => true,
        }
    }

    /// Blocks the thread until the operation has finished; not for async contexts.
    pub fn wait(mut self) -> Result<O::Output> {
        self.block();
        let State::Submitted { ticket, .. } = &self.state else {
            return self.finish(None);
        };
        let outcome = ticket.take();
        self.finish(outcome)
    }

    /// Blocks the thread until the outcome is there.
    pub(crate) fn block(&self) {
        let State::Submitted { ticket, device, .. } = &self.state else {
            return;
        };
        if !ticket.spin(&**device, device.latency().spin()) {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            while ticket.register(&waker) {
                device.watch();
                std::thread::park_timeout(Duration::from_millis(100));
            }
        }
    }

    /// Sends the result to `reply` when it is there; every outcome is sent.
    pub fn forward(self, reply: oneshot::Sender<Result<O::Output>>) {
        tokio::spawn(async move { drop(reply.send(self.await)) });
    }

    fn finish(&mut self, outcome: Option<Outcome>) -> Result<O::Output> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Submitted { operation, .. } => {
                let taken = || GpuError::invalid(O::NAME, "Pending", "its result was already taken");
                operation.output(&outcome.ok_or_else(taken)??)
            }
            State::Failed(error) => Err(error),
            State::Taken => Err(GpuError::invalid(O::NAME, "Pending", "its result was already taken")),
        }
    }
}

impl<O: Operation> Future for Pending<O> {
    type Output = Result<O::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let first = !std::mem::replace(&mut self.awaited, true);
        let State::Submitted { ticket, device, .. } = &self.state else {
            return Poll::Ready(self.finish(None));
        };
        let spin = if first { device.latency().poll_spin() } else { Duration::ZERO };
        if !ticket.spin(&**device, spin) && ticket.register(context.waker()) {
            device.watch();
            return Poll::Pending;
        }
        let outcome = ticket.take();
        Poll::Ready(self.finish(outcome))
    }
}

impl<O: Operation> Drop for Pending<O> {
    fn drop(&mut self) {
        if let State::Submitted { ticket, device, client, .. } = &self.state
            && self.awaited
            && !ticket.is_done()
        {
            device.cancel(*client, ticket);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
