//! Comparisons of the same work done in several ways: in one run, the sides alternating.

use std::time::Instant;

/// One way of doing the work. `run` does it some number of times and returns seconds an operation.
pub struct Side<'a> {
    name: &'a str,
    run: Box<dyn FnMut() -> f64 + 'a>,
    seconds: Vec<f64>,
}

impl<'a> Side<'a> {
    /// Times `operations` operations that `work` does in one go.
    pub fn batch(name: &'a str, operations: usize, mut work: impl FnMut() + 'a) -> Self {
        let run = move || {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64() / operations as f64
        };
        Side { name, run: Box::new(run), seconds: Vec::new() }
    }

    /// `run` measures itself: seconds an operation.
    pub fn timed(name: &'a str, run: impl FnMut() -> f64 + 'a) -> Self {
        Side { name, run: Box::new(run), seconds: Vec::new() }
    }

    fn quantile(&mut self, at: f64) -> f64 {
        self.seconds.sort_by(f64::total_cmp);
        self.seconds.get((at * (self.seconds.len().saturating_sub(1)) as f64).round() as usize).copied().unwrap_or(0.0)
    }
}

/// Runs every side once to warm up and `rounds` times in turn, and prints one JSON line: medians and
/// 99th percentiles in microseconds, and each side's ratio to the last one (the reference).
pub fn compare(benchmark: &str, rounds: usize, mut sides: Vec<Side<'_>>) {
    for side in &mut sides {
        (side.run)();
    }
    for _ in 0..rounds {
        for side in &mut sides {
            let seconds = (side.run)();
            side.seconds.push(seconds);
        }
    }
    let reference = sides.last_mut().map_or(f64::NAN, |side| side.quantile(0.5));
    let mut figures = serde_json::Map::new();
    for side in &mut sides {
        let (p50, p99) = (side.quantile(0.5), side.quantile(0.99));
        let entry = serde_json::json!({ "p50_us": p50 * 1e6, "p99_us": p99 * 1e6, "ratio": p50 / reference });
        figures.insert(side.name.into(), entry);
    }
    println!("{}", serde_json::json!({ "benchmark": benchmark, "rounds": rounds, "sides": figures }));
}
