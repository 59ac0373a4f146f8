//! Principal components by blocked power iteration.
//!
//! The images, their Gram matrix and the block of vectors stay on the device for the whole run. A
//! step reads one block and writes another, so that a step whose worker died is simply done again:
//! what it read is still there.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use atomr_cuda::Result;
use atomr_cuda::cublas::Gemm;
use atomr_cuda::prelude::*;

use crate::data::{Digits, PIXELS};

/// Components that are computed.
pub const COMPONENTS: usize = 10;

/// Power steps. The slowest pair of these data converges by a factor of 0.92 a step, its variance
/// by the square of that.
pub const STEPS: usize = 200;

/// Times that one step may be interrupted.
const ATTEMPTS: usize = 5;

/// What was found.
#[derive(Debug, Clone)]
pub struct Components {
    /// The part of the total variance that each component explains, largest first.
    pub explained: Vec<f64>,
    /// The first two coordinates of each image.
    pub scores: Vec<[f64; 2]>,
    /// What happened when the worker was killed.
    pub interruption: Option<Interruption>,
}

/// A step that lost its worker and was finished by the next one.
#[derive(Debug, Clone)]
pub struct Interruption {
    /// The step, from 1.
    pub step: usize,
    /// The error that the first try ended with; `None` if the step only had to wait.
    pub error: Option<GpuError>,
    /// The generation before and after.
    pub generations: [u64; 2],
    /// How much longer the step took than the median step.
    pub lost: Duration,
}

/// Computes the components of `digits` on `gpu`. `interrupt` is called in the middle of the
/// iteration, and is free to kill the worker.
///
/// # Errors
/// What the device answers, other than the loss of its worker.
pub async fn principal_components(
    gpu: &Device,
    digits: &Digits,
    interrupt: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Components> {
    let images = centred(gpu, digits).await?;
    let gram = gpu.alloc::<f64>(PIXELS * PIXELS).await?;
    gpu.gemm(&images, &images, &gram).shape(PIXELS, PIXELS, digits.len()).transpose_a().await?;
    let total: f64 = gpu.download(&gram).await?.iter().step_by(PIXELS + 1).sum();

    let mut iteration = Iteration::start(gpu, gram).await?;
    let mut interrupt = Some(interrupt);
    let mut times = Vec::with_capacity(STEPS);
    let mut hit = None;
    for step in 1..=STEPS {
        let generation = gpu.generation();
        let begin = Instant::now();
        if step == STEPS / 2
            && let Some(interrupt) = interrupt.take()
        {
            interrupt()?;
        }
        let error = iteration.step_until_done(gpu).await?;
        let generations = [generation, gpu.generation()];
        if error.is_some() || generations[0] != generations[1] {
            hit = Some(Interruption { step, error, generations, lost: begin.elapsed() });
        }
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    if let Some(hit) = &mut hit {
        hit.lost = hit.lost.saturating_sub(times[times.len() / 2]);
    }

    let variances = iteration.variances(gpu).await?;
    let scores = gpu.alloc::<f64>(digits.len() * COMPONENTS).await?;
    gpu.gemm(&images, &iteration.vectors, &scores).shape(digits.len(), COMPONENTS, PIXELS).await?;
    let scores = gpu.download(&scores).await?;
    Ok(Components {
        explained: variances.iter().map(|variance| variance / total).collect(),
        scores: scores.chunks(COMPONENTS).map(|row| [row[0], row[1]]).collect(),
        interruption: hit,
    })
}

/// The images less their mean: the mean is a product with ones, subtracting it an outer product.
async fn centred(gpu: &Device, digits: &Digits) -> Result<GpuRef<f64>> {
    let n = digits.len();
    let images = gpu.upload(&digits.pixels).await?;
    let ones = gpu.alloc::<f64>(n).await?;
    gpu.fill(&ones, 1.0).await?;
    let mean = gpu.alloc::<f64>(PIXELS).await?;
    gpu.gemv(&images, &ones, &mean).shape(n, PIXELS).transpose().alpha(1.0 / n as f64).await?;
    gpu.gemm(&ones, &mean, &images).shape(n, PIXELS, 1).alpha(-1.0).beta(1.0).await?;
    Ok(images)
}

/// The block of vectors, and where a step puts its results.
struct Iteration {
    gram: GpuRef<f64>,
    /// 64 x 10, orthonormal columns.
    vectors: GpuRef<f64>,
    /// The next ones; exchanged with `vectors` when a step has finished.
    next: GpuRef<f64>,
    product: GpuRef<f64>,
    overlap: GpuRef<f64>,
}

impl Iteration {
    /// Starts from ten vectors that are in no way special.
    async fn start(gpu: &Device, gram: GpuRef<f64>) -> Result<Self> {
        let start: Vec<f64> = (0..PIXELS * COMPONENTS).map(|i| ((i * i + 7 * i) as f64).sin()).collect();
        Ok(Iteration {
            gram,
            vectors: gpu.upload(&start).await?,
            next: gpu.alloc(PIXELS * COMPONENTS).await?,
            product: gpu.alloc(PIXELS * COMPONENTS).await?,
            overlap: gpu.alloc(COMPONENTS * COMPONENTS).await?,
        })
    }

    /// Repeats a step until its worker lives through it; the first loss, if there was one.
    async fn step_until_done(&mut self, gpu: &Device) -> anyhow::Result<Option<GpuError>> {
        let mut loss = None;
        for _ in 0..ATTEMPTS {
            match self.step(gpu).await {
                Ok(()) => return Ok(loss),
                Err(error) if is_loss(&error) => drop(loss.get_or_insert(error)),
                Err(error) => return Err(error.into()),
            }
        }
        Err(loss.map_or_else(|| anyhow::anyhow!("no attempt"), Into::into)).context("every attempt lost its worker")
    }

    /// `W = gram V`, then the orthonormal basis of W by a Cholesky factor of `W'W`.
    async fn step(&mut self, gpu: &Device) -> Result<()> {
        // Not awaited: the device keeps the order, the download waits for both.
        drop(self.multiply(gpu).submit()?);
        drop(
            gpu.gemm(&self.product, &self.product, &self.overlap)
                .shape(COMPONENTS, COMPONENTS, PIXELS)
                .transpose_a()
                .submit()?,
        );
        let overlap = gpu.download(&self.overlap).await?;
        let basis = gpu.upload(&inverse_cholesky(&overlap)?).await?;
        gpu.gemm(&self.product, &basis, &self.next).shape(PIXELS, COMPONENTS, COMPONENTS).await?;
        std::mem::swap(&mut self.vectors, &mut self.next);
        Ok(())
    }

    fn multiply(&self, gpu: &Device) -> Call<Gemm> {
        gpu.gemm(&self.gram, &self.vectors, &self.product).shape(PIXELS, COMPONENTS, PIXELS)
    }

    /// The variance along each vector: the diagonal of `V' gram V`.
    async fn variances(&self, gpu: &Device) -> anyhow::Result<Vec<f64>> {
        self.multiply(gpu).await?;
        gpu.gemm(&self.vectors, &self.product, &self.overlap)
            .shape(COMPONENTS, COMPONENTS, PIXELS)
            .transpose_a()
            .await?;
        let variances: Vec<f64> = gpu.download(&self.overlap).await?.into_iter().step_by(COMPONENTS + 1).collect();
        ensure!(variances.is_sorted_by(|a, b| a >= b), "the iteration has not converged: {variances:?}");
        Ok(variances)
    }
}

/// Whether an error says no more than that the worker died.
fn is_loss(error: &GpuError) -> bool {
    matches!(error, GpuError::ContextPoisoned { .. } | GpuError::GpuRefStale { .. })
}

/// With `m = L L'`, 10 x 10: the inverse of `L'`, which makes W orthonormal from the right.
fn inverse_cholesky(m: &[f64]) -> Result<Vec<f64>> {
    const N: usize = COMPONENTS;
    let mut l = [[0.0; N]; N];
    for i in 0..N {
        for j in 0..=i {
            let rest = m[i * N + j] - (0..j).map(|k| l[i][k] * l[j][k]).sum::<f64>();
            if i != j {
                l[i][j] = rest / l[j][j];
            } else if rest > 0.0 {
                l[i][i] = rest.sqrt();
            } else {
                return Err(GpuError::Numerical {
                    operation: "quickstart.cholesky".into(),
                    reason: "the block of vectors lost its rank".into(),
                    index: i as u64 + 1,
                    batch: None,
                });
            }
        }
    }
    let mut inverse = vec![0.0; N * N];
    for column in 0..N {
        for row in (0..=column).rev() {
            let rest: f64 = (row + 1..=column).map(|k| l[k][row] * inverse[k * N + column]).sum();
            inverse[row * N + column] = (f64::from(u8::from(row == column)) - rest) / l[row][row];
        }
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_factor_makes_a_matrix_the_identity() {
        const N: usize = COMPONENTS;
        let m: Vec<f64> = (0..N * N).map(|i| 1.0 / (1.0 + (i / N).abs_diff(i % N) as f64)).collect();
        let r = inverse_cholesky(&m).expect("positive definite");
        for (i, j) in (0..N * N).map(|i| (i / N, i % N)) {
            let sum: f64 =
                (0..N * N).map(|k| (k / N, k % N)).map(|(k, l)| r[k * N + i] * m[k * N + l] * r[l * N + j]).sum();
            assert!((sum - f64::from(u8::from(i == j))).abs() < 1e-12, "({i}, {j}): {sum}");
        }
    }
}
