//! Breaks a device on purpose, as often as asked, while clients work on it.
//!
//! Clients (`client`) do work whose results they can check (`job`) and hold buffers that nobody
//! writes, which must outlive every fault. Meanwhile faults of every kind strike (`injector`). In
//! the end stands a [`Report`]: what was lost (nothing may be), what was wrong (nothing may be), and
//! how long the device was away.
#![forbid(unsafe_code)]

mod client;
mod footprint;
mod injector;
mod job;
mod report;
mod tally;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use atomr_core::actor::ActorSystem;
use atomr_cuda::prelude::*;
use tokio::sync::watch;
use tokio::task::JoinSet;

use client::Client;
use footprint::Footprint;
use injector::Injector;
use tally::Tally;

pub use report::{Report, Times};

/// How long the clients work before the first fault, so that what is made once is there when the
/// first footprint is taken.
const WARM_UP: Duration = Duration::from_millis(500);

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device.
    pub config: DeviceConfig,
    /// Faults to inject.
    pub faults: usize,
    /// Clients that work at the same time.
    pub clients: usize,
    /// Where random numbers start.
    pub seed: u64,
    /// Mean time between the end of a fail-over and the next fault; each is random, from nothing to
    /// twice this.
    pub pause: Duration,
    /// Whether each fault waits until a spare stands by.
    pub await_spare: bool,
    /// The kinds of faults, by name; `None`: all.
    pub kinds: Option<Vec<String>>,
    /// Whether to tell about every fault on the standard error.
    pub progress: bool,
}

impl Options {
    /// 100 faults among 8 clients, on a device that may be restarted without end.
    pub fn new(config: DeviceConfig) -> Self {
        let restart = RestartPolicy { max_restarts: u32::MAX, window: Duration::from_secs(1), ..Default::default() };
        Options {
            config: config.restart_policy(restart),
            faults: 100,
            clients: 8,
            seed: 1,
            pause: Duration::from_millis(25),
            await_spare: false,
            kinds: None,
            progress: false,
        }
    }
}

/// Opens the device, works and breaks it, and says what came of it.
///
/// # Errors
/// An error of the device that is no consequence of a fault.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let system = ActorSystem::create("failover", Default::default()).await?;
    let gpu = Device::open(&system, options.config.clone()).await?;

    let load = Load::start(&gpu, options, Arc::new(Tally::default()));
    tokio::time::sleep(WARM_UP).await;
    load.stop().await?;
    let before = Footprint::settled(&gpu, None).await?;
    let completed = gpu.load().await.completed;

    let begin = Instant::now();
    let tally = Arc::new(Tally::default());
    let load = Load::start(&gpu, options, tally.clone());
    let strikes = Injector::new(&gpu, options, tally.clone()).await?.run().await;
    load.stop().await?;
    let strikes = strikes?;
    let seconds = begin.elapsed().as_secs_f64();

    let after = Footprint::settled(&gpu, Some(&before)).await?;
    let operations = gpu.load().await.completed - completed;
    let report = Report::new(&gpu, options, &tally, &strikes, [before, after], operations, seconds);
    gpu.shutdown().await;
    Ok(report)
}

/// Clients at work.
struct Load {
    clients: JoinSet<anyhow::Result<()>>,
    stop: watch::Sender<bool>,
}

impl Load {
    fn start(gpu: &Device, options: &Options, tally: Arc<Tally>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut clients = JoinSet::new();
        for number in 0..options.clients as u64 {
            let client = Client::new(gpu.clone(), tally.clone(), options.seed.wrapping_mul(1009) + number);
            clients.spawn(client.run(stopped.clone()));
        }
        Load { clients, stop }
    }

    /// Has every client check its buffers a last time, and waits for that.
    async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        while let Some(client) = self.clients.join_next().await {
            client.context("a client panicked")??;
        }
        Ok(())
    }
}
