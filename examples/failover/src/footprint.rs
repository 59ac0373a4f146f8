//! What this process holds, to see whether anything is left behind.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use atomr_cuda::prelude::*;
use tokio::time::sleep;

/// Descriptors, memory and processes at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// Open descriptors.
    pub fds: usize,
    /// Resident memory of this process.
    pub rss_kb: u64,
    /// Child processes, dead ones that nobody asked for included.
    pub children: usize,
    /// Bytes of device memory in buffers.
    pub device_bytes: u64,
}

impl Footprint {
    /// The footprint when nothing is going on: when it stops changing, or is as it was `before`, at
    /// most five seconds from now.
    pub async fn settled(gpu: &Device, before: Option<&Footprint>) -> anyhow::Result<Self> {
        let mut last = Self::now(gpu).await?;
        for _ in 0..50 {
            sleep(Duration::from_millis(100)).await;
            let next = Self::now(gpu).await?;
            let still = next.counts() == last.counts();
            last = next;
            match before {
                Some(before) if last.counts() == before.counts() => break,
                None if still => break,
                _ => {}
            }
        }
        Ok(last)
    }

    async fn now(gpu: &Device) -> anyhow::Result<Self> {
        Ok(Footprint {
            fds: fs::read_dir("/proc/self/fd").context("/proc/self/fd")?.count(),
            rss_kb: rss_kb()?,
            children: children()?,
            device_bytes: gpu.load().await.used_bytes,
        })
    }

    fn counts(&self) -> (usize, usize, u64) {
        (self.fds, self.children, self.device_bytes)
    }
}

fn rss_kb() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn children() -> anyhow::Result<usize> {
    let me = std::process::id().to_string();
    let parent = |stat: String| Some(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_string());
    let processes = fs::read_dir("/proc").context("/proc")?.flatten();
    // Processes that end while they are looked at have no file any more.
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    Ok(stats.filter_map(parent).filter(|parent| *parent == me).count())
}
