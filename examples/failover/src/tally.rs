//! What went wrong, and how replies are waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use atomr_cuda::prelude::*;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A reply that takes longer than this is counted as lost.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Lost replies after which the run is given up.
const TOO_MANY: u64 = 50;

/// Counts of all clients together.
#[derive(Debug, Default)]
pub struct Tally {
    pub lost_replies: AtomicU64,
    pub wrong_results: AtomicU64,
    pub retries: AtomicU64,
    pub jobs: AtomicU64,
    pub buffers_checked: AtomicU64,
    pub buffers_damaged: AtomicU64,
}

/// Why there is no result.
#[derive(Debug)]
pub enum Trouble {
    /// There was no reply.
    Lost,
    /// The reply is an error.
    Gpu(GpuError),
}

impl From<GpuError> for Trouble {
    fn from(error: GpuError) -> Self {
        Trouble::Gpu(error)
    }
}

/// Waits for a reply, for as long as [`PATIENCE`] lasts.
pub async fn answer<T>(reply: impl IntoFuture<Output = Result<T, GpuError>>) -> Result<T, Trouble> {
    timeout(PATIENCE, reply).await.map_err(|_| Trouble::Lost)?.map_err(Trouble::Gpu)
}

/// The same for a reply that comes through a channel, as it does to actors.
pub async fn answer_to<O: Operation>(call: Call<O>) -> Result<O::Output, Trouble> {
    let (reply, result) = oneshot::channel();
    call.reply_to(reply);
    let result = timeout(PATIENCE, result).await.map_err(|_| Trouble::Lost)?;
    result.map_err(|_| Trouble::Lost)?.map_err(Trouble::Gpu)
}

impl Tally {
    /// Counts what has gone wrong. `Ok` means: try again.
    pub fn judge(&self, trouble: Trouble) -> anyhow::Result<()> {
        match trouble {
            Trouble::Lost if add(&self.lost_replies) >= TOO_MANY => bail!("{TOO_MANY} replies were lost"),
            Trouble::Lost => Ok(()),
            Trouble::Gpu(GpuError::ContextPoisoned { .. } | GpuError::GpuRefStale { .. } | GpuError::Busy { .. }) => {
                add(&self.retries);
                Ok(())
            }
            Trouble::Gpu(error) => Err(error.into()),
        }
    }
}

/// Counts one more; the new count.
pub fn add(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed) + 1
}
