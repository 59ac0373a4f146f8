//! The front of a device: what is queued, what is in flight, and which worker has it.
//!
//! One lock guards the queues. Submitting, collecting what has finished and losing a worker all
//! happen under it; wakers are called outside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};

use crate::completion::{CompletionStrategy, Latency, Pending, Progress, Ticket};
use crate::error::{GpuError, Result, StaleReason};
use crate::executor::ExecutorKind;
use crate::executor::backend::WorkerInfo;
use crate::memory::{Memory, Space, View};
use crate::operation::{Access, Argument, BufferShape, MAX_REPLY_BYTES, Operation};
use crate::worker::{Link, MAX_RECORD_WORDS, Page};

use super::attached::{Attached, NotSent, Wakers};
use super::call::Call;
use super::config::{DeviceConfig, SparePolicy};
use super::job::Job;
use super::queue::PendingQueue;
use super::reactor::Reactor;
use super::rehearsal::Rehearsal;

/// The states of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePhase {
    /// The first worker is being started.
    Starting,
    /// Operations are carried out.
    Ready,
    /// The worker was lost; another is taking over. Operations wait.
    Lost,
    /// The device gave up.
    Failed,
    /// The device was shut down.
    ShutDown,
}

pub(super) struct Queues {
    pub phase: DevicePhase,
    pub failure: Option<GpuError>,
    pub attached: Option<Attached>,
    pub pending: PendingQueue,
    pub earliest_deadline: Option<Instant>,
}

/// Figures of the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueFigures {
    pub pending: usize,
    pub in_flight: usize,
    pub active_streams: usize,
}

/// The part of a device that its handle, its actors and its reactor share.
pub(crate) struct Front {
    pub config: DeviceConfig,
    pub memory: Arc<Memory>,
    pub reactor: Reactor,
    pub generation: watch::Sender<u64>,
    pub phase: watch::Sender<DevicePhase>,
    /// Whether the library actors were spawned once.
    pub actors_up: watch::Sender<bool>,
    /// What spares rehearse.
    pub rehearsal: Mutex<Rehearsal>,
    rehearses: bool,
    /// Told when there is room in the queue again.
    pub room: Notify,
    pub(super) info: Mutex<Option<WorkerInfo>>,
    pub(super) queues: Mutex<Queues>,
    next_ticket: AtomicU64,
    pub next_client: AtomicU32,
    pub spare_ready: AtomicBool,
    pub completed: AtomicU64,
    pub losses: AtomicU64,
}

impl Front {
    pub fn new(config: DeviceConfig, reactor: Reactor) -> Arc<Self> {
        let memory = Memory::new(config.label(), config.memory_limit, config.host_memory_limit);
        Arc::new(Front {
            memory,
            reactor,
            generation: watch::Sender::new(0),
            phase: watch::Sender::new(DevicePhase::Starting),
            actors_up: watch::Sender::new(false),
            rehearsal: Mutex::default(),
            rehearses: config.spare == SparePolicy::Warm && config.executor == Some(ExecutorKind::Cuda),
            room: Notify::new(),
            info: Mutex::new(None),
            queues: Mutex::new(Queues {
                phase: DevicePhase::Starting,
                failure: None,
                attached: None,
                pending: PendingQueue::default(),
                earliest_deadline: None,
            }),
            next_ticket: AtomicU64::new(1),
            next_client: AtomicU32::new(1),
            spare_ready: AtomicBool::new(false),
            completed: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            config,
        })
    }

    /// The running worker.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.queues.lock().attached.as_ref().map(|attached| attached.link.clone())
    }

    /// What the last worker said of itself.
    pub fn info(&self) -> Option<WorkerInfo> {
        self.info.lock().clone()
    }

    pub fn figures(&self) -> QueueFigures {
        let queues = self.queues.lock();
        let attached = queues.attached.as_ref();
        QueueFigures {
            pending: queues.pending.len(),
            in_flight: attached.map_or(0, Attached::len),
            active_streams: attached.map_or(0, Attached::active_streams),
        }
    }

    /// Why the device failed.
    pub fn failure(&self) -> GpuError {
        let queues = self.queues.lock();
        match &queues.failure {
            Some(error) => error.clone(),
            None => self.failed(&queues),
        }
    }

    pub(super) fn failed(&self, queues: &Queues) -> GpuError {
        let reason = queues.failure.as_ref().map_or_else(|| "unknown".into(), GpuError::to_string);
        GpuError::DeviceFailed { device: self.memory.label.clone(), reason }
    }

    /// Checks a call and queues it, or refuses it.
    pub fn submit<O: Operation>(self: &Arc<Self>, call: Call<O>) -> Result<Pending<O>> {
        let Call { operation, buffers, options, .. } = call;
        if self.config.executor.is_none() {
            return Err(GpuError::Mock { operation: O::NAME.into() });
        }
        let buffers = self.check(&operation, buffers)?;
        let params = encode_params(&operation)?;
        let reply_bytes = operation.reply_bytes();
        if reply_bytes > MAX_REPLY_BYTES || params.len() / 8 + 8 * buffers.len() + 64 > MAX_RECORD_WORDS {
            let reason = format!("{} bytes of parameters, {reply_bytes} of reply", params.len());
            return Err(GpuError::invalid(O::NAME, "size", reason));
        }
        let deadline = options.deadline.or(self.config.deadline);
        let ticket = Ticket::new(self.next_ticket.fetch_add(1, Ordering::Relaxed), O::NAME);
        let pending = Pending::new(ticket.clone(), self.clone(), operation, options.client);
        self.enqueue(Job {
            ticket,
            library: O::LIBRARY,
            code: O::CODE,
            lane: O::LANE,
            priority: options.priority,
            client: options.client,
            rehearse: O::REHEARSE && self.rehearses,
            reply_bytes: reply_bytes as u32,
            deadline: deadline.map(|deadline| (Instant::now() + deadline, deadline)),
            buffers,
            params,
        })?;
        if self.config.completion == CompletionStrategy::Synchronous {
            pending.block();
        }
        Ok(pending)
    }

    /// Everything that can be known of the arguments without the queues.
    pub fn check<O: Operation>(
        &self,
        operation: &O,
        buffers: SmallVec<[View; 4]>,
    ) -> Result<SmallVec<[(View, Access); 4]>> {
        let arguments = operation.arguments();
        if arguments.len() != buffers.len() {
            let reason = format!("{} are needed, {} were given", arguments.len(), buffers.len());
            return Err(GpuError::invalid(O::NAME, "buffers", reason));
        }
        let mut shapes: SmallVec<[BufferShape; 4]> = SmallVec::new();
        for (argument, view) in arguments.iter().zip(&buffers) {
            let memory = view.buffer.memory();
            if memory.token != self.memory.token {
                return Err(GpuError::WrongDevice {
                    operation: O::NAME.into(),
                    argument: argument.name.into(),
                    expected: self.memory.label.clone(),
                    found: memory.label.clone(),
                });
            }
            if view.frozen && argument.access.writes() {
                return Err(GpuError::invalid(O::NAME, argument.name, "a `Blob` is read only"));
            }
            shapes.push(BufferShape { name: argument.name, dtype: view.dtype(), len: view.len() });
        }
        operation.check(&shapes)?;
        check_aliases(O::NAME, &arguments, &buffers)?;
        for (argument, view) in arguments.iter().zip(&buffers) {
            if let Err(error) = self.check_fresh(O::NAME, argument.name, argument.access, view)
                && !self.will_be_overwritten(view)
            {
                return Err(error);
            }
        }
        Ok(buffers.into_iter().zip(arguments.iter().map(|argument| argument.access)).collect())
    }

    /// Refuses buffers whose contents are gone or undefined.
    fn check_fresh(&self, operation: &str, argument: &str, access: Access, view: &View) -> Result<()> {
        let stale =
            |reason| Err(GpuError::GpuRefStale { operation: operation.into(), argument: argument.into(), reason });
        if view.buffer.space == Space::Device && view.buffer.generation < self.memory.valid_from() {
            let (buffer, device) = (view.buffer.generation, self.memory.generation());
            return stale(StaleReason::Generation { buffer, device });
        }
        let overwritten = access == Access::Write && view.is_whole();
        match view.buffer.tainted_by() {
            Some(by) if !overwritten => stale(StaleReason::Tainted { by: by.into() }),
            _ => Ok(()),
        }
    }

    /// Whether an operation that waits overwrites the whole buffer; it is looked at again when its
    /// reader is sent.
    fn will_be_overwritten(&self, view: &View) -> bool {
        let overwrites = |(other, access): &(View, Access)| {
            *access == Access::Write && other.is_whole() && Arc::ptr_eq(&other.buffer, &view.buffer)
        };
        self.queues.lock().pending.iter().any(|job| job.buffers.iter().any(overwrites))
    }

    fn enqueue(&self, job: Job) -> Result<()> {
        let mut wakers = Wakers::new();
        let accepted = self.accept(&mut self.queues.lock(), job, &mut wakers);
        wake_all(wakers);
        accepted
    }

    /// Sends an operation at once if nothing is before it and there is room, else queues it.
    fn accept(&self, queues: &mut Queues, mut job: Job, wakers: &mut Wakers) -> Result<()> {
        match queues.phase {
            DevicePhase::Failed => return Err(self.failed(queues)),
            DevicePhase::ShutDown => return Err(GpuError::ShutDown { device: self.memory.label.clone() }),
            DevicePhase::Starting | DevicePhase::Ready | DevicePhase::Lost => {}
        }
        if !queues.pending.is_empty() || !self.has_room(queues) {
            // The worker may have finished while nobody looked.
            self.progress(queues, wakers);
        }
        let deadline = job.deadline;
        if queues.pending.is_empty() && self.has_room(queues) {
            match self.dispatch(queues, job) {
                Ok(()) => {
                    queues.expect_deadline(deadline);
                    return Ok(());
                }
                Err((_, NotSent::Refused(error))) => return Err(error),
                Err((back, NotSent::Broken(error))) => {
                    self.reactor.distrust(error);
                    job = back;
                }
                Err((back, NotSent::Full)) => job = back,
            }
        }
        let (waiting, capacity) = (queues.pending.len_of(job.client), self.config.pending_queue_capacity);
        if waiting >= capacity {
            return Err(GpuError::Busy { pending: waiting, capacity });
        }
        queues.expect_deadline(deadline);
        queues.pending.push(job);
        Ok(())
    }

    fn has_room(&self, queues: &Queues) -> bool {
        queues.attached.as_ref().is_some_and(|attached| attached.len() < self.config.max_in_flight)
    }

    /// Sends one operation to the worker, if its inputs are still what they were.
    #[allow(clippy::result_large_err, reason = "the job goes back into the queue")]
    fn dispatch(&self, queues: &mut Queues, job: Job) -> Result<(), (Job, NotSent)> {
        let Some(attached) = queues.attached.as_mut() else {
            return Err((job, NotSent::Full));
        };
        let fresh = |(view, access): &(View, Access)| self.check_fresh(job.ticket.name, "buffer", *access, view).err();
        if let Some(error) = job.buffers.iter().find_map(fresh) {
            return Err((job, NotSent::Refused(error)));
        }
        job.clear_taint();
        attached.send(job, &self.rehearsal)
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn pump(&self, queues: &mut Queues, wakers: &mut Wakers) -> Result<()> {
        let mut sent = false;
        while self.has_room(queues)
            && let Some(job) = queues.pending.pop()
        {
            match self.dispatch(queues, job) {
                Ok(()) => sent = true,
                Err((job, NotSent::Full)) => {
                    queues.pending.push_front(job);
                    break;
                }
                Err((job, NotSent::Broken(error))) => {
                    queues.pending.push_front(job);
                    return Err(error);
                }
                Err((job, NotSent::Refused(error))) => {
                    sent = true;
                    job.taint_outputs(None);
                    wakers.extend(job.ticket.complete(Err(error)));
                }
            }
        }
        if sent {
            self.room.notify_waiters();
        }
        Ok(())
    }

    /// Collects everything that has finished and sends what waits.
    pub(super) fn progress(&self, queues: &mut Queues, wakers: &mut Wakers) {
        let Some(attached) = queues.attached.as_mut() else {
            return;
        };
        let result = attached.collect(wakers).and_then(|done| {
            if done > 0 {
                self.completed.fetch_add(done, Ordering::Relaxed);
            }
            if queues.pending.is_empty() { Ok(()) } else { self.pump(queues, wakers) }
        });
        if let Err(error) = result {
            self.reactor.distrust(error);
        }
    }

    /// Whether the reactor has anything to look for.
    pub fn busy(&self) -> bool {
        self.queues.lock().attached.as_ref().is_some_and(|attached| attached.len() > 0)
    }
}

impl Progress for Front {
    fn page(&self) -> Option<Arc<Page>> {
        self.queues.lock().attached.as_ref().map(|attached| attached.link.page.clone())
    }

    fn harvest(&self) {
        let mut wakers = Wakers::new();
        self.progress(&mut self.queues.lock(), &mut wakers);
        wake_all(wakers);
    }

    fn watch(&self) {
        self.reactor.watch();
    }

    fn cancel(&self, client: u32, ticket: &Arc<Ticket>) {
        let Some(job) = self.queues.lock().pending.remove(client, ticket) else {
            return;
        };
        self.room.notify_waiters();
        // What relied on it must not read what was there before.
        job.taint_outputs(None);
        ticket.complete(Err(GpuError::Cancelled { operation: ticket.name.into() }));
    }

    fn latency(&self) -> Latency {
        self.config.latency
    }
}

impl Queues {
    fn expect_deadline(&mut self, deadline: Option<(Instant, Duration)>) {
        if let Some((at, _)) = deadline {
            self.earliest_deadline = Some(self.earliest_deadline.map_or(at, |earliest| earliest.min(at)));
        }
    }
}

/// Refuses an output that shares memory with another argument.
fn check_aliases(operation: &str, arguments: &[Argument], buffers: &[View]) -> Result<()> {
    let mut order: SmallVec<[usize; 8]> = (0..buffers.len()).collect();
    order.sort_unstable_by_key(|index| (buffers[*index].buffer.id, *index));
    for (at, one) in order.iter().enumerate() {
        let same = |other: &&usize| buffers[**other].buffer.id == buffers[*one].buffer.id;
        for other in order[at + 1..].iter().take_while(same) {
            let (output, other) = if arguments[*one].access.writes() { (one, other) } else { (other, one) };
            if arguments[*output].access.writes() && buffers[*output].overlaps(&buffers[*other]) {
                return Err(GpuError::Aliased {
                    operation: operation.into(),
                    output: arguments[*output].name.into(),
                    other: arguments[*other].name.into(),
                });
            }
        }
    }
    Ok(())
}

pub(super) fn wake_all(wakers: Wakers) {
    for waker in wakers {
        waker.wake();
    }
}

/// Most operations have few parameters: those never touch the heap.
fn encode_params<O: Operation>(operation: &O) -> Result<SmallVec<[u8; 96]>> {
    let mut small = [0; 96];
    if let Ok(encoded) = postcard::to_slice(operation, &mut small) {
        return Ok(SmallVec::from_slice(encoded));
    }
    let encoded = postcard::to_allocvec(operation)
        .map_err(|e| GpuError::invalid(O::NAME, "parameters", format!("they do not serialise: {e}")))?;
    Ok(SmallVec::from_vec(encoded))
}
