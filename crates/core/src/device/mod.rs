//! The front of a device: its handle, its actors, its queues. It makes no CUDA call.

mod actor;
#[cfg(feature = "ndarray")]
mod array;
mod attached;
mod call;
mod children;
mod config;
mod context;
mod front;
mod handle;
mod host;
mod incarnation;
mod job;
mod load;
mod messages;
mod queue;
mod reactor;
mod rehearsal;
mod staging;
mod streams;
pub(crate) mod transfer;

pub use actor::DeviceActor;
pub use call::{Buffers, Call, Request};
pub use children::KernelChildren;
pub use config::{DeviceConfig, Isolation, RestartPolicy, SparePolicy};
pub use context::{ContextActor, ContextMsg};
pub use front::DevicePhase;
pub use handle::{Device, DeviceState};
pub use load::{DeviceLoad, LibraryState, LibraryStatus};
pub use messages::{DeviceMsg, Dispatch, Event, RawContext, RawStream, Reply, legacy};
pub use streams::{Priority, StreamPolicy};
pub use transfer::{Copy, Fill, HostCopy};
