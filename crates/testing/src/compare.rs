//! Comparisons of the same work done in several ways: in one run, the sides alternating. Results are
//! JSON, one line a benchmark; `cargo xtask plot` draws them.

use std::future::Future;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Adds one or more measurements: seconds an operation.
type Run<'a> = Box<dyn FnMut(&mut Vec<f64>) + 'a>;

/// One way of doing the work.
pub struct Side<'a> {
    name: &'a str,
    run: Run<'a>,
    bar: Option<Bar>,
}

/// What a side's median is held to.
#[derive(Clone, Copy)]
enum Bar {
    Ratio(f64),
    Microseconds(f64),
}

impl<'a> Side<'a> {
    /// Times `operations` operations that `work` does in one go: one measurement a round.
    pub fn batch(name: &'a str, operations: usize, mut work: impl FnMut() + 'a) -> Self {
        Self::timed(name, move || {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64() / operations as f64
        })
    }

    /// `run` measures itself: seconds an operation, one measurement a round.
    pub fn timed(name: &'a str, mut run: impl FnMut() -> f64 + 'a) -> Self {
        Self::samples(name, move |seconds| seconds.push(run()))
    }

    /// Times every single one of `samples` operations a round, so that the quantiles are those of one
    /// operation. A tenth more run unmeasured first: another side had the machine before.
    pub fn latency(name: &'a str, samples: usize, mut operation: impl FnMut() + 'a) -> Self {
        Self::samples(name, move |seconds| {
            for sample in 0..samples + samples / 10 {
                let started = Instant::now();
                operation();
                if sample >= samples / 10 {
                    seconds.push(started.elapsed().as_secs_f64());
                }
            }
        })
    }

    /// As [`Side::latency`], awaited by a task of `runtime`. Making the future is not timed.
    pub fn awaited<F: Future + Send>(
        name: &'a str,
        samples: usize,
        runtime: &'a Runtime,
        operation: impl Fn() -> F + Clone + Send + 'static,
    ) -> Self {
        Self::samples(name, move |seconds| {
            let operation = operation.clone();
            let task = runtime.spawn(async move {
                let mut seconds = Vec::with_capacity(samples);
                for sample in 0..samples + samples / 10 {
                    let work = operation();
                    let started = Instant::now();
                    drop(work.await);
                    if sample >= samples / 10 {
                        seconds.push(started.elapsed().as_secs_f64());
                    }
                }
                seconds
            });
            seconds.extend(runtime.block_on(task).expect("the task of a benchmark ends"));
        })
    }

    /// `run` measures itself and adds what it measured: seconds an operation.
    pub fn samples(name: &'a str, run: impl FnMut(&mut Vec<f64>) + 'a) -> Self {
        Side { name, run: Box::new(run), bar: None }
    }

    /// The median is to be at most `ratio` times the reference's.
    pub fn at_most(mut self, ratio: f64) -> Self {
        self.bar = Some(Bar::Ratio(ratio));
        self
    }

    /// The median is to be at most this many microseconds.
    pub fn at_most_us(mut self, microseconds: f64) -> Self {
        self.bar = Some(Bar::Microseconds(microseconds));
        self
    }
}

/// Runs every side once to warm up and `rounds` times in turn, and prints one JSON line: for each
/// side its median and 99th percentile in microseconds, the ratio of its median to that of the last
/// side (the reference), and whether it keeps its bar.
pub fn compare(benchmark: &str, rounds: usize, sides: Vec<Side<'_>>) {
    run(benchmark, rounds, None, sides);
}

/// As [`compare`], and says how much gets done in a second: `amount` of `unit` an operation.
pub fn compare_rates(benchmark: &str, rounds: usize, amount: f64, unit: &str, sides: Vec<Side<'_>>) {
    run(benchmark, rounds, Some((amount, unit)), sides);
}

/// Whether the command line asks for this benchmark: it names a part of it, or nothing.
pub fn wanted(benchmark: &str) -> bool {
    let mut filters = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| benchmark.contains(&filter))
}

fn run(benchmark: &str, rounds: usize, rate: Option<(f64, &str)>, mut sides: Vec<Side<'_>>) {
    if !wanted(benchmark) {
        return;
    }
    let mut measured = vec![Vec::new(); sides.len()];
    for side in &mut sides {
        (side.run)(&mut Vec::new());
    }
    for _ in 0..rounds {
        for (side, seconds) in sides.iter_mut().zip(&mut measured) {
            (side.run)(seconds);
        }
    }
    println!("{}", summary(benchmark, rounds, rate, &sides, measured));
}

fn summary(
    benchmark: &str,
    rounds: usize,
    rate: Option<(f64, &str)>,
    sides: &[Side<'_>],
    mut measured: Vec<Vec<f64>>,
) -> Value {
    for seconds in &mut measured {
        seconds.sort_by(f64::total_cmp);
    }
    let reference = measured.last().map_or(f64::NAN, |seconds| quantile(seconds, 0.5));
    let figures = sides.iter().zip(&measured).map(|(side, seconds)| {
        let (p50, p99) = (quantile(seconds, 0.5), quantile(seconds, 0.99));
        let mut figures = json!({
            "name": side.name,
            "samples": seconds.len(),
            "p50_us": p50 * 1e6,
            "p99_us": p99 * 1e6,
            "ratio": p50 / reference,
        });
        if let Some((amount, _)) = rate {
            figures["rate"] = json!(amount / p50);
        }
        match side.bar {
            Some(Bar::Ratio(bar)) => {
                figures["bar_ratio"] = json!(bar);
                figures["met"] = json!(p50 / reference <= bar);
            }
            Some(Bar::Microseconds(bar)) => {
                figures["bar_us"] = json!(bar);
                figures["met"] = json!(p50 * 1e6 <= bar);
            }
            None => {}
        }
        figures
    });
    let figures: Vec<Value> = figures.collect();
    let mut line = json!({ "benchmark": benchmark, "rounds": rounds, "sides": figures });
    if let Some((_, unit)) = rate {
        line["unit"] = json!(unit);
    }
    line
}

/// The value below which a share of `at` of the sorted values lies; 0 where there is none.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    sorted.get((at * sorted.len().saturating_sub(1) as f64).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_ratios_rates_and_bars() {
        let sides = [
            Side::timed("ours", || 0.0).at_most(1.5),
            Side::timed("slow", || 0.0).at_most_us(5.0),
            Side::timed("raw", || 0.0),
        ];
        let measured = vec![vec![3e-6, 2e-6, 3e-6, 9e-6, 3e-6], vec![8e-6], vec![2e-6; 5]];
        let line = summary("test", 5, Some((6.0, "op/s")), &sides, measured);
        let side = |at: usize, key: &str| line["sides"][at][key].clone();
        let near = |value: Value, expected: f64| (value.as_f64().expect("a number") / expected - 1.0).abs() < 1e-9;
        assert!(near(side(0, "p50_us"), 3.0) && near(side(0, "p99_us"), 9.0) && near(side(0, "ratio"), 1.5));
        assert!(near(side(0, "rate"), 2e6) && near(side(2, "ratio"), 1.0));
        assert_eq!([side(0, "met"), side(1, "met"), side(2, "met")], [json!(true), json!(false), Value::Null]);
        assert_eq!(line["unit"], "op/s");
    }

    #[test]
    fn every_single_operation_is_measured() {
        let (mut operations, mut seconds) = (0, Vec::new());
        let mut side = Side::latency("ours", 20, || operations += 1);
        (side.run)(&mut seconds);
        drop(side);
        assert_eq!((operations, seconds.len()), (22, 20));
    }
}
