//! The handle that applications hold.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atomr_core::actor::{ActorRef, ActorSystem, Props};
use tokio::sync::{oneshot, watch};

use crate::completion::Pending;
use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::executor::ExecutorKind;
use crate::memory::{Buffer, GpuRef, Space, round_up};
use crate::operation::{LibraryId, Operation, checked_product};
use crate::registry;
use crate::worker::Answer;

use super::actor::DeviceActor;
use super::call::Call;
use super::children::KernelChildren;
use super::config::DeviceConfig;
use super::front::{DevicePhase, Front};
use super::load::{DeviceLoad, LibraryState, LibraryStatus};
use super::messages::{DeviceMsg, Event};
use super::reactor::Reactor;
use super::transfer::{Copy, Fill};

/// A device: a thin handle over its actor, good for the life of the service. Clones are the same
/// device.
#[derive(Clone)]
pub struct Device {
    pub(crate) state: Arc<DeviceState>,
    actor: ActorRef<DeviceMsg>,
    pub(crate) client: u32,
}

/// What a device's actor and handles share: queues, memory, generation.
pub struct DeviceState {
    pub(crate) front: Arc<Front>,
    pub(crate) children: KernelChildren,
    /// Held while a segment is made and handed to every worker, and while a worker is told of all.
    pub(crate) segments: parking_lot::Mutex<()>,
    growing: tokio::sync::Mutex<()>,
}

impl DeviceState {
    pub(crate) fn new(config: DeviceConfig) -> Result<Arc<Self>> {
        Ok(Arc::new(DeviceState {
            front: Front::new(config, Reactor::new()?),
            children: KernelChildren::default(),
            segments: parking_lot::Mutex::default(),
            growing: tokio::sync::Mutex::default(),
        }))
    }

    /// A receiver of the generation: 0 before the first worker, then rising with every incarnation.
    pub fn generation_watch(&self) -> watch::Receiver<u64> {
        self.front.generation.subscribe()
    }

    /// The device's state now.
    pub fn phase(&self) -> DevicePhase {
        *self.front.phase.borrow()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.label())
    }
}

impl Device {
    /// Opens a device and waits until its first worker is up.
    ///
    /// # Errors
    /// What kept the worker from starting: a missing driver ([`GpuError::LibraryMissing`]), no such
    /// device, no worker executable ([`GpuError::WorkerStart`]).
    pub async fn open(system: &ActorSystem, config: DeviceConfig) -> Result<Self> {
        let device = Self::start(system, config)?;
        device.ready().await?;
        Ok(device)
    }

    /// Opens a device without waiting: operations queue until it is ready.
    pub fn start(system: &ActorSystem, config: DeviceConfig) -> Result<Self> {
        if !config.streams.is_valid() {
            let reason = format!("{:?}: at least one of normal priority, and at most 16 in all", config.streams);
            return Err(GpuError::invalid("Device::start", "streams", reason));
        }
        if config.max_in_flight == 0 || config.segment_bytes < 1 << 16 {
            let reason = format!(
                "max_in_flight {} (at least 1), segment_bytes {} (at least 65536)",
                config.max_in_flight, config.segment_bytes
            );
            return Err(GpuError::invalid("Device::start", "config", reason));
        }
        let state = DeviceState::new(config)?;
        let for_actor = state.clone();
        let name = format!("device-{}-{}", state.front.config.label().replace(':', "-"), state.front.memory.token);
        let actor = system
            .actor_of(
                Props::create(move || DeviceActor::new(for_actor.clone()))
                    .with_supervisor_strategy(DeviceActor::strategy()),
                &name,
            )
            .map_err(|e| GpuError::WorkerStart { reason: format!("the device's actor: {e}") })?;
        state.front.reactor.start(state.front.clone(), actor.clone())?;
        actor.tell(DeviceMsg::Internal(Event::Start));
        Ok(Device { state, actor, client: 0 })
    }

    pub(crate) fn from_parts(state: Arc<DeviceState>, actor: ActorRef<DeviceMsg>) -> Self {
        Device { state, actor, client: 0 }
    }

    pub(super) fn front(&self) -> &Arc<Front> {
        &self.state.front
    }

    /// A handle of a client of its own: its operations wait in a queue of their own, and the device
    /// serves its clients in turn, so that a greedy one does not hold up the others.
    ///
    /// Order is kept among the operations of one client (a handle and its clones). Between clients it
    /// is only that of what was awaited.
    pub fn client(&self) -> Self {
        let client = self.front().next_client.fetch_add(1, Ordering::Relaxed);
        Device { client, ..self.clone() }
    }

    /// Whether the other handle is one of the same device.
    pub fn is_same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Waits until the device is ready, its libraries' actors included, or has failed.
    pub async fn ready(&self) -> Result<()> {
        let mut phase = self.front().phase.subscribe();
        let reached = phase.wait_for(|phase| !matches!(phase, DevicePhase::Starting | DevicePhase::Lost)).await;
        match reached.map(|phase| *phase) {
            Ok(DevicePhase::Ready) => {
                let mut actors_up = self.front().actors_up.subscribe();
                tokio::select! {
                    _ = actors_up.wait_for(|up| *up) => Ok(()),
                    _ = phase.wait_for(|phase| matches!(phase, DevicePhase::Failed | DevicePhase::ShutDown)) => {
                        Err(self.front().failure())
                    }
                }
            }
            Ok(DevicePhase::Failed) => Err(self.front().failure()),
            _ => Err(GpuError::ShutDown { device: self.label() }),
        }
    }

    /// The device's actor: the same work can be sent to it as messages.
    pub fn actor(&self) -> &ActorRef<DeviceMsg> {
        &self.actor
    }

    /// `cuda:0`, `host:0` or `mock:0`.
    pub fn label(&self) -> String {
        self.front().memory.label.clone()
    }

    /// The executor that carries out operations; `Host` also for a mock, which carries out none.
    pub fn executor(&self) -> ExecutorKind {
        self.front().config.executor.unwrap_or(ExecutorKind::Host)
    }

    /// The device's state.
    pub fn phase(&self) -> DevicePhase {
        self.state.phase()
    }

    /// The incarnation of the compute side, from 1.
    pub fn generation(&self) -> u64 {
        *self.front().generation.borrow()
    }

    /// A receiver of the generation.
    pub fn generation_watch(&self) -> watch::Receiver<u64> {
        self.state.generation_watch()
    }

    /// The worker's process, if it has one and is up.
    pub fn worker_pid(&self) -> Option<u32> {
        self.front().link().and_then(|link| link.pid())
    }

    /// The library actors.
    pub fn children(&self) -> &KernelChildren {
        &self.state.children
    }

    pub(crate) fn submit<O: Operation>(&self, call: Call<O>) -> Result<Pending<O>> {
        self.front().submit(call)
    }

    /// Allocates `len` elements, uninitialised. Usually arithmetic in this process; where the device
    /// has no room left, the executor makes a new segment first.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for zero elements, [`GpuError::SizeOverflow`],
    /// [`GpuError::OutOfMemory`] with requested, free and total bytes.
    pub async fn alloc<T: CudaDtype>(&self, len: usize) -> Result<GpuRef<T>> {
        if let Some(buffer) = self.try_alloc(len)? {
            return Ok(buffer);
        }
        let bytes = byte_len::<T>(len)?;
        Ok(GpuRef::new(self.grow(bytes).await?, len))
    }

    /// Allocates from the segments there are; `None` when a new segment would be needed
    /// ([`Device::alloc`] makes it).
    pub fn try_alloc<T: CudaDtype>(&self, len: usize) -> Result<Option<GpuRef<T>>> {
        let bytes = byte_len::<T>(len)?;
        if self.front().config.executor.is_none() {
            return Err(GpuError::Mock { operation: "core.alloc".into() });
        }
        Ok(self.front().memory.allocate(Space::Device, bytes).map(|buffer| GpuRef::new(buffer, len)))
    }

    /// A buffer of `bytes` in a new segment.
    async fn grow(&self, bytes: u64) -> Result<Arc<Buffer>> {
        let front = self.front();
        let _one_at_a_time = self.state.growing.lock().await;
        loop {
            if let Some(buffer) = front.memory.allocate(Space::Device, bytes) {
                return Ok(buffer);
            }
            self.ready().await?;
            let Some(link) = front.link() else {
                tokio::task::yield_now().await;
                continue;
            };
            let overflow = || GpuError::SizeOverflow {
                operation: "core.alloc".into(),
                argument: "len".into(),
                expression: format!("{bytes} bytes in units of {}", link.info.granularity),
            };
            let own = round_up(bytes, link.info.granularity).ok_or_else(overflow)?;
            let shared = round_up(front.config.segment_bytes, link.info.granularity).ok_or_else(overflow)?;
            let whole = bytes > front.config.segment_bytes / 2 || front.memory.check_limit(shared).is_err();
            let segment_bytes = if whole { own } else { shared };
            front.memory.check_limit(segment_bytes)?;
            let id = front.memory.new_segment_id();
            let Ok(answer) = link.create_segment(id, segment_bytes) else {
                continue;
            };
            let fd = match answer.await {
                Ok(Ok(Answer::Segment(fd))) => Arc::new(fd),
                Ok(Ok(Answer::Memory(..))) => {
                    return Err(GpuError::Protocol { side: "worker".into(), reason: "the wrong answer".into() });
                }
                Ok(Err(error)) => return Err(error),
                // The worker was lost meanwhile; the next one is asked.
                Err(_) => continue,
            };
            let _segments = self.state.segments.lock();
            for other in front.reactor.links().iter().filter(|other| other.id != link.id) {
                // A worker that cannot be told is found out by its channel.
                let _ = other.map_segment(Space::Device, id, segment_bytes, &fd);
            }
            let buffer = front.memory.install(Space::Device, id, segment_bytes, fd, None, whole.then_some(bytes));
            if let Some(buffer) = buffer {
                return Ok(buffer);
            }
        }
    }

    /// Sets every element of `destination` to `value`.
    pub fn fill<T: CudaDtype>(&self, destination: &GpuRef<T>, value: T) -> Call<Fill> {
        Call::new(self, Fill::new(value), [destination.view()])
    }

    /// Copies `source` to `destination`, of the same length.
    pub fn copy<T: CudaDtype>(&self, source: &GpuRef<T>, destination: &GpuRef<T>) -> Call<Copy> {
        Call::new(self, Copy, [source.view(), destination.view()])
    }

    /// Which libraries are up, and why others are not.
    pub fn libraries(&self) -> Vec<LibraryStatus> {
        let enabled = self.front().config.libraries;
        let info = self.front().info();
        let mut statuses: Vec<LibraryStatus> = registry::linked()
            .into_iter()
            .map(|entry| {
                let reported = info.as_ref().map(|info| info.libraries.iter().find(|(id, _)| *id == entry.id.index()));
                let state = match reported {
                    _ if !enabled.contains(entry.id.bit()) => LibraryState::Disabled,
                    Some(Some((_, Ok(version)))) => LibraryState::Ready(version.clone()),
                    Some(Some((_, Err(error)))) => LibraryState::Unavailable(error.clone()),
                    Some(None) => LibraryState::NotLinked,
                    None => LibraryState::Starting,
                };
                LibraryStatus { name: entry.name.into(), state }
            })
            .collect();
        for bit in enabled.iter() {
            if bit.bits().count_ones() == 1 && registry::find(LibraryId::of(bit)).is_none() {
                statuses.push(LibraryStatus { name: LibraryId::of(bit).to_string(), state: LibraryState::NotLinked });
            }
        }
        statuses
    }

    /// The device's load. Free and total bytes come from the executor, when it is up.
    pub async fn load(&self) -> DeviceLoad {
        let front = self.front();
        let info = front.info();
        let mut memory = info.as_ref().map_or((0, 0), |info| (info.free_bytes, info.total_bytes));
        if let Some(answer) = front.link().and_then(|link| link.query_memory().ok())
            && let Ok(Ok(Ok(Answer::Memory(free, total)))) = tokio::time::timeout(Duration::from_secs(1), answer).await
        {
            memory = (free, total);
        }
        let (figures, usage) = (front.figures(), front.memory.usage());
        DeviceLoad {
            device: self.label(),
            name: info.as_ref().map_or_else(|| self.label(), |info| info.device_name.clone()),
            phase: self.phase(),
            executor: front.config.executor,
            free_bytes: memory.0,
            total_bytes: memory.1,
            used_bytes: usage.device_used,
            reserved_bytes: usage.device_reserved,
            host_used_bytes: usage.host_used,
            host_reserved_bytes: usage.host_reserved,
            spare_ready: front.spare_ready.load(Ordering::Acquire),
            active_streams: figures.active_streams as u32,
            queue_depth: figures.pending,
            in_flight: figures.in_flight,
            completed: front.completed.load(Ordering::Relaxed),
            losses: front.losses.load(Ordering::Relaxed),
            compute_capability: info.map(|info| info.compute_capability).filter(|capability| *capability != (0, 0)),
            generation: self.generation(),
        }
    }

    /// Has the worker end or hang, to prove fail-over.
    #[cfg(feature = "fault")]
    pub fn fault(&self, fault: crate::worker::fault::Fault) -> Call<crate::worker::fault::FaultOp> {
        Call::new(self, crate::worker::fault::FaultOp { fault }, [])
    }

    /// Finishes what is queued (for at most ten seconds), then ends the worker and the actors.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        self.actor.tell(DeviceMsg::Shutdown(reply));
        // A device that is gone already does not answer, which is as good.
        let _ = done.await;
    }
}

pub(super) fn byte_len<T: CudaDtype>(len: usize) -> Result<u64> {
    if len == 0 {
        return Err(GpuError::invalid("core.alloc", "len", "zero elements"));
    }
    checked_product("core.alloc", "len", &[len as u64, size_of::<T>() as u64])
}
