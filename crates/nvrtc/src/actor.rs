//! The library's actor: it checks, submits and replies.

use atomr_core::actor::{Actor, Context, Props};
use atomr_cuda_core::{ContextActor, Device, GpuError, KernelChildren, Request, Result};

use crate::op::{Compile, Launch, OccupancyQuery};

/// What the actor understands: a call and where its result goes.
pub enum NvrtcMsg {
    /// Compiles a source.
    Compile(Request<Compile>),
    /// Launches a kernel.
    Launch(Request<Launch>),
    /// How full a kernel makes the device.
    Occupancy(Request<OccupancyQuery>),
}

/// One actor for each context of a device. It has no state: operations carry everything.
pub struct NvrtcActor;

#[async_trait::async_trait]
impl Actor for NvrtcActor {
    type Msg = NvrtcMsg;

    async fn handle(&mut self, _ctx: &mut Context<Self>, message: NvrtcMsg) {
        match message {
            NvrtcMsg::Compile(request) => request.serve(),
            NvrtcMsg::Launch(request) => request.serve(),
            NvrtcMsg::Occupancy(request) => request.serve(),
        }
    }
}

/// Spawns the actor under a context; `ActorRef<NvrtcMsg>` is then found in the children.
pub(crate) fn spawn(ctx: &mut Context<ContextActor>, _device: &Device, children: &KernelChildren) -> Result<()> {
    let actor = ctx.spawn(Props::create(|| NvrtcActor), "nvrtc").map_err(|error| GpuError::DeviceFailed {
        device: ctx.path().to_string(),
        reason: format!("the NVRTC actor could not be spawned: {error}"),
    })?;
    children.register_extra(actor);
    Ok(())
}
