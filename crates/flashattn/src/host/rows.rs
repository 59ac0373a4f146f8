//! Rows of queries against the keys and values of one head.

use rayon::prelude::*;

use crate::op::Shape;

/// Keys and values of one head, in f32.
pub(super) struct Keys {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Keys {
    pub fn gather(count: usize, key: impl Fn(usize) -> Vec<f32>, value: impl Fn(usize) -> Vec<f32>) -> Self {
        Keys { keys: (0..count).map(key).collect(), values: (0..count).map(value).collect() }
    }
}

/// One query.
pub(super) struct Row {
    pub query: Vec<f32>,
    pub position: usize,
    pub head: usize,
}

/// What a row gives.
pub(super) struct Attended {
    pub output: Vec<f32>,
    pub lse: f32,
}

/// Which keys a query sees.
pub(super) struct Mask {
    /// Keys less queries: the last of both are aligned.
    pub offset: i64,
    pub left: Option<i64>,
    pub right: Option<i64>,
    pub keys: usize,
}

impl Mask {
    fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let own = position as i64 + self.offset;
        let keys = self.keys as i64;
        let first = self.left.map_or(0, |left| own.saturating_sub(left)).clamp(0, keys);
        let end = self.right.map_or(keys, |right| own.saturating_add(right).saturating_add(1)).clamp(first, keys);
        first as usize..end as usize
    }
}

/// Attention of each row, on all cores.
pub(super) fn attend(rows: &[Row], keys: &Keys, mask: &Mask, shape: &Shape) -> Vec<Attended> {
    rows.par_iter().map(|row| attend_row(row, keys, mask.visible(row.position), shape)).collect()
}

fn attend_row(row: &Row, keys: &Keys, visible: std::ops::Range<usize>, shape: &Shape) -> Attended {
    let scale = shape.scale();
    let mut weights: Vec<f32> = keys.keys[visible.clone()]
        .iter()
        .map(|key| {
            let score = scale * dot(&row.query, key);
            shape.softcap.map_or(score, |softcap| softcap * (score / softcap).tanh())
        })
        .collect();
    let largest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut output = vec![0.0; row.query.len()];
    if weights.is_empty() {
        return Attended { output, lse: f32::NEG_INFINITY };
    }
    weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    for (weight, value) in weights.iter().zip(&keys.values[visible]) {
        output.iter_mut().zip(value).for_each(|(output, value)| *output += weight * value);
    }
    output.iter_mut().for_each(|output| *output = (f64::from(*output) / sum) as f32);
    Attended { output, lse: largest + sum.ln() as f32 }
}

/// Eight sums side by side, which a compiler turns into vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}
