//! The device's actor: the supervisor of its workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use atomr_core::actor::{Actor, ActorRef, Context, Props};
use atomr_core::supervision::{Directive, OneForOneStrategy, SupervisorStrategy};
use tokio::sync::oneshot;

use crate::completion::Latency;
use crate::error::{GpuError, Result};
use crate::executor::ExecutorKind;
use crate::executor::backend::StartConfig;
use crate::worker::{Launch, Link, ToWorker};

use super::config::{Isolation, SparePolicy};
use super::context::{ContextActor, ContextMsg};
use super::front::{DevicePhase, Front};
use super::handle::{Device, DeviceState};
use super::messages::{DeviceMsg, Event, RawContext, RawStream};

/// How long a shutdown waits for queued work.
const DRAIN: Duration = Duration::from_secs(10);

/// Holds a device's workers: starts them, replaces them, and gives up when too many were lost.
pub struct DeviceActor {
    state: Arc<DeviceState>,
    spare: Option<Arc<Link>>,
    launching: bool,
    /// The device has no worker and waits for the one being launched.
    vacant: bool,
    restarts: VecDeque<Instant>,
    generation: u64,
    context: Option<ActorRef<ContextMsg>>,
    ending: Vec<oneshot::Sender<()>>,
}

impl DeviceActor {
    pub(crate) fn new(state: Arc<DeviceState>) -> Self {
        DeviceActor {
            state,
            spare: None,
            launching: false,
            vacant: true,
            restarts: VecDeque::new(),
            generation: 0,
            context: None,
            ending: Vec::new(),
        }
    }

    /// A panic in a handler costs one message, not the device's state.
    pub(crate) fn strategy() -> SupervisorStrategy {
        OneForOneStrategy::new().with_decider(|_: &str| Directive::Resume).into()
    }

    fn front(&self) -> &Arc<Front> {
        &self.state.front
    }

    fn event(&mut self, ctx: &mut Context<Self>, event: Event) {
        match event {
            Event::Start if self.front().config.executor.is_none() => {
                self.generation = 1;
                self.front().phase.send_replace(DevicePhase::Ready);
                self.front().generation.send_replace(1);
                self.spawn_context(ctx);
            }
            Event::Start | Event::Retry => self.launch(ctx),
            Event::Launched(result) => {
                self.launching = false;
                match result.and_then(|link| self.welcome(*link)) {
                    Ok(link) if self.vacant => self.activate(ctx, link),
                    Ok(link) => self.set_spare(Some(link)),
                    Err(error) => self.not_launched(ctx, error),
                }
            }
            Event::Lost { link, error } => {
                if self.spare.as_ref().is_some_and(|spare| spare.id == link) {
                    self.set_spare(None);
                    if self.restart_allowed(&error) {
                        self.launch(ctx);
                    }
                } else {
                    self.lost(ctx, error);
                }
            }
            Event::Finish => self.finish(ctx),
        }
    }

    /// Starts a worker on a thread of its own; it comes back as an event.
    fn launch(&mut self, ctx: &Context<Self>) {
        let ended = matches!(self.state.phase(), DevicePhase::Failed | DevicePhase::ShutDown);
        if self.launching || ended || !self.ending.is_empty() {
            return;
        }
        self.launching = true;
        let config = &self.front().config;
        let launch = Launch {
            start: StartConfig {
                kind: config.executor.unwrap_or(ExecutorKind::Host),
                ordinal: config.ordinal,
                streams: config.streams.counts(),
                libraries: config.libraries.bits(),
                in_process: config.isolation == Isolation::Thread,
                spin_us: match config.latency {
                    Latency::LowLatency => 1000,
                    Latency::Balanced => 50,
                    Latency::LowCpu => 0,
                },
            },
            executable: config.worker_executable.clone(),
            timeout: config.start_timeout,
        };
        let actor = ctx.self_ref().clone();
        let started = std::thread::Builder::new().name("atomr-launch".into()).spawn({
            let actor = actor.clone();
            move || actor.tell(DeviceMsg::Internal(Event::Launched(Link::launch(&launch).map(Box::new))))
        });
        if let Err(error) = started {
            let error = GpuError::io("starting the launch thread", error);
            actor.tell(DeviceMsg::Internal(Event::Launched(Err(error))));
        }
    }

    /// Tells a new worker of every segment and has the reactor watch over it.
    fn welcome(&self, link: Link) -> Result<Arc<Link>> {
        let link = Arc::new(link);
        let _segments = self.state.segments.lock();
        for (space, id, bytes, fd) in self.front().memory.segments() {
            link.map_segment(space, id, bytes, &fd)?;
        }
        self.front().reactor.add(link.clone());
        Ok(link)
    }

    fn set_spare(&mut self, spare: Option<Arc<Link>>) {
        self.front().spare_ready.store(spare.is_some(), Ordering::Release);
        self.spare = spare;
    }

    fn activate(&mut self, ctx: &mut Context<Self>, link: Arc<Link>) {
        self.vacant = false;
        self.generation += 1;
        tracing::info!(device = %self.front().memory.label, generation = self.generation, pid = ?link.pid(), "worker ready");
        self.front().attach(link, self.generation);
        self.spawn_context(ctx);
        let config = &self.front().config;
        if config.spare == SparePolicy::Warm && config.isolation == Isolation::Process {
            self.launch(ctx);
        }
    }

    fn spawn_context(&mut self, ctx: &mut Context<Self>) {
        if let Some(old) = self.context.take() {
            old.tell(ContextMsg::Retire);
        }
        let device = Device::from_parts(self.state.clone(), ctx.self_ref().clone());
        let props = Props::create(move || ContextActor::new(device.clone()));
        match ctx.spawn(props, &format!("ctx-{}", self.generation)) {
            Ok(context) => {
                context.tell(ContextMsg::Begin);
                self.context = Some(context);
            }
            Err(error) => {
                tracing::error!(%error, "no context actor: library actors are missing");
                self.front().actors_up.send_replace(true);
            }
        }
    }

    fn lost(&mut self, ctx: &mut Context<Self>, error: GpuError) {
        if matches!(self.state.phase(), DevicePhase::Failed | DevicePhase::ShutDown) {
            return;
        }
        tracing::warn!(device = %self.front().memory.label, generation = self.generation, %error, "worker lost");
        self.vacant = true;
        if self.front().config.isolation == Isolation::Thread {
            let reason = format!(
                "{error}; in `Isolation::Thread` the process has lost CUDA, only `Isolation::Process` can recover"
            );
            self.front().end(DevicePhase::Failed, Some(GpuError::WorkerLost { exit: reason, last_words: None }));
        } else if self.restart_allowed(&error) {
            let spare = self.spare.take();
            self.set_spare(None);
            match spare {
                Some(spare) => self.activate(ctx, spare),
                None => self.launch(ctx),
            }
        }
    }

    /// Counts a restart; beyond the budget the device fails.
    fn restart_allowed(&mut self, error: &GpuError) -> bool {
        let policy = self.front().config.restart;
        let now = Instant::now();
        self.restarts.push_back(now);
        while self.restarts.front().is_some_and(|at| now.duration_since(*at) > policy.window) {
            self.restarts.pop_front();
        }
        if self.restarts.len() <= policy.max_restarts as usize {
            return true;
        }
        let exit = format!("{} workers lost within {:?}, the last one so: {error}", self.restarts.len(), policy.window);
        self.front().end(DevicePhase::Failed, Some(GpuError::WorkerLost { exit, last_words: None }));
        false
    }

    fn not_launched(&mut self, ctx: &Context<Self>, error: GpuError) {
        tracing::warn!(device = %self.front().memory.label, %error, "worker not started");
        if self.generation == 0 {
            return self.front().end(DevicePhase::Failed, Some(error));
        }
        if self.restart_allowed(&error) {
            let (actor, backoff) = (ctx.self_ref().clone(), self.front().config.restart.backoff);
            tokio::spawn(async move {
                tokio::time::sleep(backoff).await;
                actor.tell(DeviceMsg::Internal(Event::Retry));
            });
        }
    }

    /// Lets queued work finish, then ends.
    fn shutdown(&mut self, ctx: &Context<Self>, reply: oneshot::Sender<()>) {
        self.ending.push(reply);
        if self.ending.len() > 1 {
            return;
        }
        let (front, actor) = (self.front().clone(), ctx.self_ref().clone());
        tokio::spawn(async move {
            let until = Instant::now() + DRAIN;
            while Instant::now() < until {
                let figures = front.figures();
                if figures.pending + figures.in_flight == 0 || *front.phase.borrow() != DevicePhase::Ready {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            actor.tell(DeviceMsg::Internal(Event::Finish));
        });
    }

    fn finish(&mut self, ctx: &mut Context<Self>) {
        self.close();
        if let Some(context) = self.context.take() {
            context.tell(ContextMsg::Retire);
        }
        for reply in self.ending.drain(..) {
            // Whoever asked may not wait any more.
            let _ = reply.send(());
        }
        ctx.stop_self();
    }

    /// Answers everybody and ends the workers.
    fn close(&mut self) {
        self.front().end(DevicePhase::ShutDown, None);
        self.spare = None;
        for link in self.front().reactor.stop() {
            // A worker that is gone already needs no telling.
            let _ = link.channel.send(&ToWorker::Shutdown, None);
            link.reap_after(Duration::from_millis(500));
        }
    }

    fn raw(&self) -> Option<(u64, Vec<u64>)> {
        self.front().link().and_then(|link| link.raw.clone())
    }
}

#[async_trait]
impl Actor for DeviceActor {
    type Msg = DeviceMsg;

    async fn handle(&mut self, ctx: &mut Context<Self>, message: DeviceMsg) {
        // A receiver that is gone needs no answer, here and below.
        match message {
            DeviceMsg::Operation(request) => {
                request.dispatch(&Device::from_parts(self.state.clone(), ctx.self_ref().clone()));
            }
            DeviceMsg::SnapshotContext(reply) => {
                let _ = reply.send(self.raw().map(|raw| RawContext(raw.0)));
            }
            DeviceMsg::SnapshotStream(reply) => {
                let _ = reply.send(self.raw().and_then(|raw| raw.1.first().copied()).map(RawStream));
            }
            DeviceMsg::SnapshotChildren(reply) => drop(reply.send(self.state.children.clone())),
            DeviceMsg::WatchGeneration(reply) => drop(reply.send(self.state.generation_watch())),
            DeviceMsg::Stats(reply) => {
                let device = Device::from_parts(self.state.clone(), ctx.self_ref().clone());
                tokio::spawn(async move { drop(reply.send(device.load().await)) });
            }
            DeviceMsg::Shutdown(reply) => self.shutdown(ctx, reply),
            DeviceMsg::Internal(event) => self.event(ctx, event),
        }
    }

    async fn post_stop(&mut self, _ctx: &mut Context<Self>) {
        self.close();
    }
}
