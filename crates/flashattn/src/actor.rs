//! The library's actor: it checks, submits and replies.

use atomr_core::actor::{Actor, Context, Props};
use atomr_cuda_core::{ContextActor, Device, GpuError, KernelChildren, Request, Result};

use crate::op::{Attention, Decode, PlanQuery};

/// What the actor understands: a call and where its result goes.
pub enum AttentionMsg {
    /// Attention, forward.
    Attention(Request<Attention>),
    /// Attention against a paged cache.
    Decode(Request<Decode>),
    /// Which kernel an operation takes.
    Plan(Request<PlanQuery>),
}

/// One actor for each context of a device. It has no state: operations carry everything.
pub struct AttentionActor;

#[async_trait::async_trait]
impl Actor for AttentionActor {
    type Msg = AttentionMsg;

    async fn handle(&mut self, _ctx: &mut Context<Self>, message: AttentionMsg) {
        match message {
            AttentionMsg::Attention(request) => request.serve(),
            AttentionMsg::Decode(request) => request.serve(),
            AttentionMsg::Plan(request) => request.serve(),
        }
    }
}

/// Spawns the actor under a context; `ActorRef<AttentionMsg>` is then found in the children.
pub(crate) fn spawn(ctx: &mut Context<ContextActor>, _device: &Device, children: &KernelChildren) -> Result<()> {
    let actor = ctx.spawn(Props::create(|| AttentionActor), "flashattn").map_err(|error| GpuError::DeviceFailed {
        device: ctx.path().to_string(),
        reason: format!("the attention actor could not be spawned: {error}"),
    })?;
    children.register_extra(actor);
    Ok(())
}
