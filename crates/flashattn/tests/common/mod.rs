//! Exact attention in `f64`, and the bounds that the kernels' roundings give.
#![allow(dead_code, reason = "each test uses a part")]

use atomr_cuda_flashattn::HalfElement;
use atomr_cuda_testing::Element;

/// One row of the reference.
pub struct Reference {
    pub output: Vec<f64>,
    /// Sum of weight * |value|: what roundings of weights are relative to.
    pub size: Vec<f64>,
    pub lse: f64,
    /// The largest score, in absolute value.
    pub largest: f64,
}

/// How scores are made and which keys count.
#[derive(Debug, Clone, Copy)]
pub struct Scores {
    pub scale: f64,
    pub softcap: Option<f64>,
    pub causal: bool,
    pub left: Option<i64>,
    pub right: Option<i64>,
}

/// Attention of the query at `position` of `seq_q` against keys and values.
pub fn reference(
    q: &[f64],
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
    position: usize,
    seq_q: usize,
    how: &Scores,
) -> Reference {
    let own = position as i64 + keys.len() as i64 - seq_q as i64;
    let right = if how.causal { Some(how.right.map_or(0, |right| right.min(0))) } else { how.right };
    let visible: Vec<usize> = (0..keys.len())
        .filter(|key| how.left.is_none_or(|left| *key as i64 >= own - left))
        .filter(|key| right.is_none_or(|right| *key as i64 <= own + right))
        .collect();
    let scores: Vec<f64> = visible
        .iter()
        .map(|key| {
            let score = how.scale * q.iter().zip(&keys[*key]).map(|(q, k)| q * k).sum::<f64>();
            how.softcap.map_or(score, |softcap| softcap * (score / softcap).tanh())
        })
        .collect();
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - highest).exp()).sum();
    let (mut output, mut size) = (vec![0.0; q.len()], vec![0.0; q.len()]);
    for (score, key) in scores.iter().zip(&visible) {
        let weight = (score - highest).exp() / sum;
        for (at, value) in values[*key].iter().enumerate() {
            output[at] += weight * value;
            size[at] += weight * value.abs();
        }
    }
    let lse = if visible.is_empty() { f64::NEG_INFINITY } else { highest + sum.ln() };
    let largest = scores.iter().map(|score| score.abs()).fold(0.0, f64::max);
    Reference { output, size, lse, largest }
}

/// Requires the row within what rounding weights and outputs to `T` and scores to f32 gives.
pub fn assert_row<T: HalfElement + Element>(found: &[T], lse: Option<f32>, exact: &Reference, what: &str) {
    // A score's error in f32 grows with the score and moves its weight by as much; softcap's tanh is
    // an approximation of 2^-11.
    let score_error = 2e-5 * (1.0 + exact.largest);
    for (at, found) in found.iter().enumerate() {
        let bound =
            (3.0 * T::EPSILON + 2.0 * score_error) * exact.size[at] + T::EPSILON * exact.output[at].abs() + 1e-6;
        let error = (found.to_f64() - exact.output[at]).abs();
        assert!(
            error <= bound,
            "{what}: element {at} is {}, not {}: {error:e} is more than {bound:e}",
            found.to_f64(),
            exact.output[at]
        );
    }
    if let Some(lse) = lse {
        let fits = match exact.lse.is_finite() {
            true => (f64::from(lse) - exact.lse).abs() <= score_error + 1e-5 * exact.lse.abs(),
            false => lse == f32::NEG_INFINITY,
        };
        assert!(fits, "{what}: the logarithm of the sum is {lse}, not {}", exact.lse);
    }
}
