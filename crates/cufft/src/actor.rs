//! The library's actor: it checks, submits and replies.

use atomr_core::actor::{Actor, Context, Props};
use atomr_cuda_core::{ContextActor, Device, GpuError, KernelChildren, Request, Result};

use crate::op::Transform;

/// What the actor understands: a call and where its result goes.
pub enum FftMsg {
    /// A batch of transforms.
    Transform(Request<Transform>),
}

/// One actor for each context of a device. It has no state: operations carry everything.
pub struct FftActor;

#[async_trait::async_trait]
impl Actor for FftActor {
    type Msg = FftMsg;

    async fn handle(&mut self, _ctx: &mut Context<Self>, message: FftMsg) {
        match message {
            FftMsg::Transform(request) => request.serve(),
        }
    }
}

/// Spawns the actor under a context; `ActorRef<FftMsg>` is then found in the children.
pub(crate) fn spawn(ctx: &mut Context<ContextActor>, _device: &Device, children: &KernelChildren) -> Result<()> {
    let actor = ctx.spawn(Props::create(|| FftActor), "cufft").map_err(|error| GpuError::DeviceFailed {
        device: ctx.path().to_string(),
        reason: format!("the cuFFT actor could not be spawned: {error}"),
    })?;
    children.register_extra(actor);
    Ok(())
}
