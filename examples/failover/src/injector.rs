//! Faults, and the time that each costs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use atomr_cuda::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{sleep, timeout};

use crate::Options;
use crate::tally::{PATIENCE, Tally, add, answer};

/// What a fault that never ends is given.
const DEADLINE: Duration = Duration::from_millis(50);

/// Something that ends a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An operation that strikes inside the worker.
    Operation(Fault),
    /// `SIGKILL` from outside.
    Signal,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Signal => "signal".into(),
            Kind::Operation(fault) => format!("{fault:?}").to_lowercase(),
        }
    }
}

/// A fault that the device came back from.
#[derive(Debug, Clone)]
pub struct Strike {
    /// `signal`, or the fault's name.
    pub kind: String,
    /// From the worker's death to the next finished operation.
    pub away: Duration,
}

/// Injects faults one after the other.
pub struct Injector<'a> {
    gpu: &'a Device,
    options: &'a Options,
    tally: Arc<Tally>,
    rng: StdRng,
    /// What the operation that ends a fail-over writes.
    probe: GpuRef<f32>,
}

impl<'a> Injector<'a> {
    /// An injector with its own small buffer on the device.
    pub async fn new(gpu: &'a Device, options: &'a Options, tally: Arc<Tally>) -> anyhow::Result<Self> {
        let probe = gpu.alloc(16).await?;
        Ok(Injector { gpu, options, tally, rng: StdRng::seed_from_u64(options.seed), probe })
    }

    /// Injects all faults, every kind equally often, in random order and at random moments.
    pub async fn run(mut self) -> anyhow::Result<Vec<Strike>> {
        let faults = Fault::all(self.gpu.executor()).iter().map(|fault| Kind::Operation(*fault));
        let wanted = |kind: &Kind| self.options.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind.name()));
        let kinds: Vec<Kind> = faults.chain([Kind::Signal]).filter(wanted).collect();
        ensure!(!kinds.is_empty(), "no kind of fault has one of the names {:?}", self.options.kinds);
        let mut plan: Vec<Kind> = kinds.into_iter().cycle().take(self.options.faults).collect();
        plan.shuffle(&mut self.rng);

        let mut strikes = Vec::with_capacity(plan.len());
        for (i, kind) in plan.iter().enumerate() {
            sleep(self.options.pause.mul_f64(self.rng.random_range(0.0..2.0))).await;
            while self.options.await_spare && !self.gpu.load().await.spare_ready {
                sleep(Duration::from_millis(5)).await;
            }
            let strike = self.strike(*kind).await.with_context(|| format!("fault {}, {kind:?}", i + 1))?;
            if self.options.progress {
                let ms = strike.away.as_secs_f64() * 1e3;
                eprintln!("{:>5} of {}  {:<15} {ms:>8.2} ms", i + 1, plan.len(), strike.kind);
            }
            strikes.push(strike);
        }
        Ok(strikes)
    }

    /// Ends the worker and waits for the first operation of the next one.
    async fn strike(&self, kind: Kind) -> anyhow::Result<Strike> {
        let worker = Arc::new(self.worker().await?);
        let generation = self.gpu.generation();
        let death = tokio::task::spawn_blocking({
            let worker = worker.clone();
            move || wait_for_death(&worker)
        });
        let noticed = match kind {
            Kind::Signal => {
                let begin = Instant::now();
                pidfd_send_signal(&*worker, Signal::KILL).context("killing the worker")?;
                begin
            }
            Kind::Operation(fault) => self.carry_out(fault).await?,
        };
        loop {
            match answer(self.gpu.fill(&self.probe, 1.0)).await {
                // A worker may finish one more operation while the signal is on its way.
                Ok(()) if self.gpu.generation() > generation => break,
                Ok(()) => {}
                Err(trouble) => self.tally.judge(trouble)?,
            }
        }
        let finished = Instant::now();
        // A worker may die some time after the device has given it up.
        let ended = death.await?.context("waiting for the worker's death")?.min(noticed);
        Ok(Strike { kind: kind.name(), away: finished - ended })
    }

    /// Has the worker strike itself; when the device noticed.
    async fn carry_out(&self, fault: Fault) -> anyhow::Result<Instant> {
        let mut call = self.gpu.fault(fault);
        if matches!(fault, Fault::Hang | Fault::EndlessKernel) {
            call = call.deadline(DEADLINE);
        }
        match timeout(PATIENCE, call).await {
            Ok(Ok(())) => bail!("the fault did not strike"),
            Ok(Err(GpuError::ContextPoisoned { .. } | GpuError::DeadlineExceeded { .. })) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => drop(add(&self.tally.lost_replies)),
        }
        Ok(Instant::now())
    }

    /// The worker there is, or the next one there will be.
    async fn worker(&self) -> anyhow::Result<OwnedFd> {
        let begin = Instant::now();
        loop {
            let pid = self.gpu.worker_pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
            if let Some(worker) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
                return Ok(worker);
            }
            ensure!(begin.elapsed() < PATIENCE, "the device has had no worker for {PATIENCE:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Blocks until the process has ended.
fn wait_for_death(worker: &OwnedFd) -> anyhow::Result<Instant> {
    let patience = rustix::time::Timespec { tv_sec: 2 * PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut ended = [PollFd::new(worker, PollFlags::IN)];
    ensure!(poll(&mut ended, Some(&patience))? == 1, "it lives on");
    Ok(Instant::now())
}
