//! One incarnation of the compute side: the parent of its library actors.

use async_trait::async_trait;
use atomr_core::actor::{Actor, Context};

use crate::registry;

use super::handle::Device;

/// The actor of one generation, `ctx-<generation>`. It spawns an actor for each enabled library and
/// ends with its worker.
pub struct ContextActor {
    device: Device,
}

/// What a context's actor understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextMsg {
    /// Spawn the library actors.
    Begin,
    /// The next generation has taken over.
    Retire,
}

impl ContextActor {
    pub(crate) fn new(device: Device) -> Self {
        ContextActor { device }
    }
}

#[async_trait]
impl Actor for ContextActor {
    type Msg = ContextMsg;

    async fn handle(&mut self, ctx: &mut Context<Self>, message: ContextMsg) {
        match message {
            ContextMsg::Begin => {
                let enabled = self.device.state.front.config.libraries;
                for entry in registry::linked().into_iter().filter(|entry| enabled.contains(entry.id.bit())) {
                    if let Err(error) = (entry.spawn)(ctx, &self.device, self.device.children()) {
                        tracing::error!(library = entry.name, %error, "library actor not spawned");
                    }
                }
                self.device.state.front.actors_up.send_replace(true);
            }
            ContextMsg::Retire => ctx.stop_self(),
        }
    }
}
