//! A client: works without pause, and checks after every fault that its buffers are as they were.

use std::sync::Arc;

use anyhow::bail;
use atomr_cuda::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

use crate::job::{Job, integers};
use crate::tally::{Tally, Trouble, add, answer};

/// Buffers that a client holds and does not write.
const KEPT: usize = 4;

/// Tries of one piece of work. A fault costs one or two; more mean another trouble than faults.
const TRIES: usize = 100;

/// One of several that share a device.
pub struct Client {
    gpu: Device,
    tally: Arc<Tally>,
    rng: StdRng,
    kept: Vec<Kept>,
}

/// A buffer, and what must be in it.
struct Kept {
    buffer: GpuRef<f32>,
    contents: Vec<f32>,
}

impl Client {
    /// A client that has not begun.
    pub fn new(gpu: Device, tally: Arc<Tally>, seed: u64) -> Self {
        Client { gpu, tally, rng: StdRng::seed_from_u64(seed), kept: Vec::new() }
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// An error that is no consequence of a fault.
    pub async fn run(mut self, stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        let mut generation = self.gpu.generation_watch();
        generation.mark_unchanged();
        while !*stop.borrow() {
            if self.kept.len() < KEPT {
                self.keep().await?;
            }
            self.work().await?;
            if generation.has_changed().unwrap_or(false) {
                generation.mark_unchanged();
                self.check_kept().await?;
                // Made anew one by one, so that buffers of many generations are about.
                let oldest = self.rng.random_range(0..self.kept.len());
                self.kept.swap_remove(oldest);
            }
        }
        self.check_kept().await
    }

    /// Does one job, as often as it takes, and compares.
    async fn work(&mut self) -> anyhow::Result<()> {
        let job = Job::random(&mut self.rng);
        let mut tries = 0;
        let result = loop {
            match job.attempt(&self.gpu).await {
                Ok(result) => break result,
                Err(trouble) if tries == TRIES => bail!("{TRIES} tries failed, the last with {trouble:?}"),
                Err(trouble) => self.tally.judge(trouble)?,
            }
            tries += 1;
        };
        if result != job.expected {
            add(&self.tally.wrong_results);
        }
        add(&self.tally.jobs);
        Ok(())
    }

    /// Uploads one more buffer to hold.
    async fn keep(&mut self) -> anyhow::Result<()> {
        let len = self.rng.random_range(1..=8192);
        let contents = integers(&mut self.rng, len);
        let buffer = loop {
            match answer(self.gpu.upload(&contents)).await {
                Ok(buffer) => break buffer,
                Err(trouble) => self.tally.judge(trouble)?,
            }
        };
        self.kept.push(Kept { buffer, contents });
        Ok(())
    }

    /// Compares the buffers with what was put there. Since nothing writes them, none may be stale.
    async fn check_kept(&mut self) -> anyhow::Result<()> {
        for kept in &self.kept {
            let intact = loop {
                match answer(self.gpu.download(&kept.buffer)).await {
                    Ok(found) => break found == kept.contents,
                    Err(Trouble::Gpu(GpuError::GpuRefStale { .. })) if kept.buffer.view().tainted_by().is_some() => {
                        break false;
                    }
                    Err(trouble) => self.tally.judge(trouble)?,
                }
            };
            add(&self.tally.buffers_checked);
            if !intact {
                add(&self.tally.buffers_damaged);
            }
        }
        Ok(())
    }
}
