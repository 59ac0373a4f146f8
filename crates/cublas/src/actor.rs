//! The library's actor: it checks, submits and replies.

use atomr_core::actor::{Actor, Context, Props};
use atomr_cuda_core::{ContextActor, Device, GpuError, KernelChildren, Request, Result};

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Gemm, Gemv, Nrm2, Scal, Swap};

/// What the actor understands: a call and where its result goes.
pub enum BlasMsg {
    /// Matrix product, also of a batch.
    Gemm(Request<Gemm>),
    /// Matrix times vector.
    Gemv(Request<Gemv>),
    /// `y = alpha x + y`.
    Axpy(Request<Axpy>),
    /// Dot product.
    Dot(Request<Dot>),
    /// Euclidean norm.
    Nrm2(Request<Nrm2>),
    /// Sum of absolute values.
    Asum(Request<Asum>),
    /// `x = alpha x`.
    Scal(Request<Scal>),
    /// `y = x`.
    Copy(Request<Copy>),
    /// Exchange of x and y.
    Swap(Request<Swap>),
    /// Index of the largest absolute value.
    Amax(Request<Amax>),
    /// Index of the smallest absolute value.
    Amin(Request<Amin>),
}

/// One actor for each context of a device. It has no state: operations carry everything.
pub struct BlasActor;

#[async_trait::async_trait]
impl Actor for BlasActor {
    type Msg = BlasMsg;

    async fn handle(&mut self, _ctx: &mut Context<Self>, message: BlasMsg) {
        match message {
            BlasMsg::Gemm(request) => request.serve(),
            BlasMsg::Gemv(request) => request.serve(),
            BlasMsg::Axpy(request) => request.serve(),
            BlasMsg::Dot(request) => request.serve(),
            BlasMsg::Nrm2(request) => request.serve(),
            BlasMsg::Asum(request) => request.serve(),
            BlasMsg::Scal(request) => request.serve(),
            BlasMsg::Copy(request) => request.serve(),
            BlasMsg::Swap(request) => request.serve(),
            BlasMsg::Amax(request) => request.serve(),
            BlasMsg::Amin(request) => request.serve(),
        }
    }
}

/// Spawns the actor under a context; `ActorRef<BlasMsg>` is then found in the children.
pub(crate) fn spawn(ctx: &mut Context<ContextActor>, _device: &Device, children: &KernelChildren) -> Result<()> {
    let actor = ctx.spawn(Props::create(|| BlasActor), "cublas").map_err(|error| GpuError::DeviceFailed {
        device: ctx.path().to_string(),
        reason: format!("the cuBLAS actor could not be spawned: {error}"),
    })?;
    children.register_extra(actor);
    Ok(())
}
