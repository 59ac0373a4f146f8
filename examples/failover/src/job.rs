//! Work whose result is known.
//!
//! All numbers are small integers, so that results are exact whatever the order of the sums.

use atomr_cuda::prelude::*;
use rand::Rng;
use rand::rngs::StdRng;

use crate::tally::{Trouble, answer, answer_to};

/// A piece of work and its right result.
#[derive(Debug)]
pub struct Job {
    work: Work,
    pub expected: Vec<f32>,
}

#[derive(Debug)]
enum Work {
    /// `A B`, with A m x k and B k x n. The product is not awaited.
    Gemm { shape: [usize; 3], a: Vec<f32>, b: Vec<f32> },
    /// `alpha x + y`. Everything is awaited.
    Axpy { alpha: f32, x: Vec<f32>, y: Vec<f32> },
    /// `alpha x` added several times to zero, x being filled with a value. Nothing is awaited.
    Chain { len: usize, value: f32, alpha: f32, times: usize },
    /// A copy with a part of it filled. Replies come through channels.
    Patch { x: Vec<f32>, part: std::ops::Range<usize>, value: f32 },
}

impl Job {
    /// Any job.
    pub fn random(rng: &mut StdRng) -> Self {
        let work = match rng.random_range(0..4) {
            0 => {
                let shape @ [m, n, k] = std::array::from_fn(|_| rng.random_range(1..=48));
                Work::Gemm { shape, a: integers(rng, m * k), b: integers(rng, k * n) }
            }
            1 => {
                let len = rng.random_range(1..=4096);
                Work::Axpy { alpha: integer(rng), x: integers(rng, len), y: integers(rng, len) }
            }
            2 => Work::Chain {
                len: rng.random_range(1..=32_768),
                value: integer(rng),
                alpha: integer(rng),
                times: rng.random_range(1..=16),
            },
            _ => {
                let len = rng.random_range(2..=8192);
                let start = rng.random_range(0..len - 1);
                Work::Patch {
                    x: integers(rng, len),
                    part: start..rng.random_range(start + 1..len),
                    value: integer(rng),
                }
            }
        };
        Job { expected: work.on_cpu(), work }
    }

    /// Does the work on the device, once.
    pub async fn attempt(&self, gpu: &Device) -> Result<Vec<f32>, Trouble> {
        match &self.work {
            Work::Gemm { shape: [m, n, k], a, b } => {
                let a = answer(gpu.upload(a)).await?;
                let b = answer(gpu.upload(b)).await?;
                let c = answer(gpu.alloc(m * n)).await?;
                drop(gpu.gemm(&a, &b, &c).shape(*m, *n, *k).submit()?);
                answer(gpu.download(&c)).await
            }
            Work::Axpy { alpha, x, y } => {
                let x = answer(gpu.upload(x)).await?;
                let y = answer(gpu.upload(y)).await?;
                answer(gpu.axpy(f64::from(*alpha), &x, &y)).await?;
                answer(gpu.download(&y)).await
            }
            Work::Chain { len, value, alpha, times } => {
                let x = answer(gpu.alloc(*len)).await?;
                let y = answer(gpu.alloc(*len)).await?;
                drop(gpu.fill(&x, *value).submit()?);
                drop(gpu.fill(&y, 0.0).submit()?);
                for _ in 0..*times {
                    drop(gpu.axpy(f64::from(*alpha), &x, &y).submit()?);
                }
                answer(gpu.download(&y)).await
            }
            Work::Patch { x, part, value } => {
                let x = answer(gpu.upload(x)).await?;
                let y = answer(gpu.alloc(x.len())).await?;
                answer_to(gpu.copy(&x, &y)).await?;
                answer_to(gpu.fill(&y.slice(part.clone())?, *value)).await?;
                answer(gpu.download(&y)).await
            }
        }
    }
}

impl Work {
    fn on_cpu(&self) -> Vec<f32> {
        match self {
            Work::Gemm { shape: [m, n, k], a, b } => {
                (0..m * n).map(|i| (0..*k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum()).collect()
            }
            Work::Axpy { alpha, x, y } => x.iter().zip(y).map(|(x, y)| alpha * x + y).collect(),
            Work::Chain { len, value, alpha, times } => vec![alpha * value * *times as f32; *len],
            Work::Patch { x, part, value } => {
                let mut y = x.clone();
                y[part.clone()].fill(*value);
                y
            }
        }
    }
}

fn integer(rng: &mut StdRng) -> f32 {
    f32::from(rng.random_range(-8i8..=8))
}

/// `len` integers from -8 to 8.
pub fn integers(rng: &mut StdRng, len: usize) -> Vec<f32> {
    (0..len).map(|_| integer(rng)).collect()
}
