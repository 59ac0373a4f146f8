//! The library's actor: it checks, submits and replies.

use atomr_core::actor::{Actor, Context, Props};
use atomr_cuda_core::{ContextActor, Device, GpuError, KernelChildren, Request, Result};

use crate::op::{CrossEntropy, Softmax};

/// What the actor understands: a call and where its result goes.
pub enum RowwiseMsg {
    /// Softmax of each row.
    Softmax(Request<Softmax>),
    /// Mean cross-entropy.
    CrossEntropy(Request<CrossEntropy>),
}

/// One actor for each context of a device. It has no state: operations carry everything.
pub struct RowwiseActor;

#[async_trait::async_trait]
impl Actor for RowwiseActor {
    type Msg = RowwiseMsg;

    async fn handle(&mut self, _ctx: &mut Context<Self>, message: RowwiseMsg) {
        match message {
            RowwiseMsg::Softmax(request) => request.serve(),
            RowwiseMsg::CrossEntropy(request) => request.serve(),
        }
    }
}

/// Spawns the actor under a context; `ActorRef<RowwiseMsg>` is then found in the children.
pub(crate) fn spawn(ctx: &mut Context<ContextActor>, _device: &Device, children: &KernelChildren) -> Result<()> {
    let actor = ctx.spawn(Props::create(|| RowwiseActor), "rowwise").map_err(|error| GpuError::DeviceFailed {
        device: ctx.path().to_string(),
        reason: format!("the row-wise actor could not be spawned: {error}"),
    })?;
    children.register_extra(actor);
    Ok(())
}
