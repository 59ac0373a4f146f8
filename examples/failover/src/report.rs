//! The result, as one line of JSON or as a few lines of text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atomr_cuda::prelude::*;
use serde::Serialize;

use crate::Options;
use crate::footprint::Footprint;
use crate::injector::Strike;
use crate::tally::Tally;

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "the names are the keys of the JSON line, and say what they are")]
pub struct Report {
    pub faults: usize,
    pub recovered: usize,
    pub lost_replies: u64,
    pub wrong_results: u64,
    /// Comparisons of buffers that nobody wrote: of all that are held, after faults and at the end.
    pub surviving_buffers_checked: u64,
    pub surviving_buffers_damaged: u64,
    pub failover_ms_p50: f64,
    pub failover_ms_p99: f64,
    pub failover_ms_max: f64,
    pub failover_by_kind: BTreeMap<String, Times>,
    pub spare: String,
    pub executor: String,
    pub clients: usize,
    pub seed: u64,
    pub pause_ms: f64,
    /// Pieces of work whose result was compared.
    pub jobs: u64,
    /// Operations that the device finished.
    pub operations: u64,
    pub retries: u64,
    pub seconds: f64,
    pub fds_before: usize,
    pub fds_after: usize,
    pub children_before: usize,
    pub children_after: usize,
    pub rss_kb_before: u64,
    pub rss_kb_after: u64,
    pub device_bytes_before: u64,
    pub device_bytes_after: u64,
}

/// Fail-over times of one kind of fault, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Times {
    /// Faults.
    pub count: usize,
    /// Median.
    pub p50: f64,
    /// Longest.
    pub max: f64,
}

impl Report {
    pub(crate) fn new(
        gpu: &Device,
        options: &Options,
        tally: &Tally,
        strikes: &[Strike],
        [before, after]: [Footprint; 2],
        operations: u64,
        seconds: f64,
    ) -> Self {
        let all = milliseconds(strikes.iter());
        let mut kinds: Vec<&str> = strikes.iter().map(|strike| strike.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let by_kind = kinds.into_iter().map(|kind| {
            let times = milliseconds(strikes.iter().filter(|strike| strike.kind == kind));
            (kind.to_string(), Times { count: times.len(), p50: rank(&times, 0.5), max: rank(&times, 1.0) })
        });
        Report {
            faults: options.faults,
            recovered: strikes.len(),
            lost_replies: tally.lost_replies.load(Ordering::Relaxed),
            wrong_results: tally.wrong_results.load(Ordering::Relaxed),
            surviving_buffers_checked: tally.buffers_checked.load(Ordering::Relaxed),
            surviving_buffers_damaged: tally.buffers_damaged.load(Ordering::Relaxed),
            failover_ms_p50: rank(&all, 0.5),
            failover_ms_p99: rank(&all, 0.99),
            failover_ms_max: rank(&all, 1.0),
            failover_by_kind: by_kind.collect(),
            spare: format!("{:?}", options.config.spare).to_lowercase(),
            executor: gpu.executor().to_string(),
            clients: options.clients,
            seed: options.seed,
            pause_ms: rounded(options.pause),
            jobs: tally.jobs.load(Ordering::Relaxed),
            operations,
            retries: tally.retries.load(Ordering::Relaxed),
            seconds: (seconds * 1e3).round() / 1e3,
            fds_before: before.fds,
            fds_after: after.fds,
            children_before: before.children,
            children_after: after.children,
            rss_kb_before: before.rss_kb,
            rss_kb_after: after.rss_kb,
            device_bytes_before: before.device_bytes,
            device_bytes_after: after.device_bytes,
        }
    }

    /// Whether the device kept its promises.
    pub fn passed(&self) -> bool {
        self.recovered == self.faults
            && self.lost_replies == 0
            && self.wrong_results == 0
            && self.surviving_buffers_damaged == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} executor, {} spare, {} clients", self.executor, self.spare, self.clients)?;
        writeln!(f, "{} faults in {:.1} s, {} recovered", self.faults, self.seconds, self.recovered)?;
        writeln!(f, "{} replies lost, {} results wrong of {}", self.lost_replies, self.wrong_results, self.jobs)?;
        let [checked, damaged] = [self.surviving_buffers_checked, self.surviving_buffers_damaged];
        writeln!(f, "{checked} surviving buffers checked, {damaged} damaged")?;
        let [p50, p99, max] = [self.failover_ms_p50, self.failover_ms_p99, self.failover_ms_max];
        writeln!(f, "fail-over: median {p50:.2} ms, 99% within {p99:.2} ms, longest {max:.2} ms")?;
        for (kind, times) in &self.failover_by_kind {
            writeln!(
                f,
                "  {kind:<15} {:>4} times, median {:.2} ms, longest {:.2} ms",
                times.count, times.p50, times.max
            )?;
        }
        writeln!(f, "{} operations, {} retries", self.operations, self.retries)?;
        write!(
            f,
            "before and after: {} and {} descriptors, {} and {} child processes, {} and {} bytes on the device",
            self.fds_before,
            self.fds_after,
            self.children_before,
            self.children_after,
            self.device_bytes_before,
            self.device_bytes_after,
        )
    }
}

fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn milliseconds<'a>(strikes: impl Iterator<Item = &'a Strike>) -> Vec<f64> {
    let mut times: Vec<f64> = strikes.map(|strike| rounded(strike.away)).collect();
    times.sort_unstable_by(f64::total_cmp);
    times
}

/// The smallest of sorted `times` that a `part` of them does not exceed; 0 if there are none.
fn rank(times: &[f64], part: f64) -> f64 {
    let index = (times.len() as f64 * part).ceil() as usize;
    times.get(index.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let times: Vec<f64> = (1..=200).map(f64::from).collect();
        for (part, expected) in [(0.5, 100.0), (0.99, 198.0), (1.0, 200.0), (0.0, 1.0)] {
            assert_eq!(rank(&times, part), expected, "{part}");
        }
        assert_eq!(rank(&[], 0.5), 0.0);
    }
}
