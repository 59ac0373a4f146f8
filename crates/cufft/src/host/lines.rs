//! Dense arrays, transformed line by line in each dimension, on all cores.

use atomr_cuda_core::Complex;
use rayon::prelude::*;
use realfft::RealFftPlanner;
use rustfft::{FftNum, FftPlanner};

use crate::op::Transform;

/// Planners keep the plans they made.
pub(super) struct Lines<W: FftNum> {
    complex: FftPlanner<W>,
    real: RealFftPlanner<W>,
}

impl<W: FftNum> Lines<W> {
    pub fn new() -> Self {
        Lines { complex: FftPlanner::new(), real: RealFftPlanner::new() }
    }

    /// Transforms every dimension of `data`.
    pub fn complex(&mut self, op: &Transform, data: &mut [Complex<W>]) {
        let lengths: Vec<usize> = op.lengths.iter().map(|length| *length as usize).collect();
        for at in 0..lengths.len() {
            self.dimension(op, lengths[at], lengths[at + 1..].iter().product(), data);
        }
    }

    /// Lines of `length` elements, `inner` apart.
    fn dimension(&mut self, op: &Transform, length: usize, inner: usize, data: &mut [Complex<W>]) {
        let plan = match op.kind.is_forward() {
            true => self.complex.plan_fft_forward(length),
            false => self.complex.plan_fft_inverse(length),
        };
        let zero = Complex::new(W::zero(), W::zero());
        let scratch = plan.get_inplace_scratch_len();
        if inner == 1 {
            // Several lines a task, so that scratch is not made for each.
            let lines = (1usize << 14).div_ceil(length);
            data.par_chunks_mut(lines * length).for_each(|lines| {
                plan.process_with_scratch(lines, &mut vec![zero; scratch]);
            });
            return;
        }
        data.par_chunks_mut(length * inner).for_each(|block| {
            let (mut line, mut scratch) = (vec![zero; length], vec![zero; scratch]);
            for first in 0..inner {
                line.iter_mut().zip(block[first..].iter().step_by(inner)).for_each(|(line, value)| *line = *value);
                plan.process_with_scratch(&mut line, &mut scratch);
                block[first..].iter_mut().step_by(inner).zip(&line).for_each(|(value, line)| *value = *line);
            }
        });
    }

    /// Real lines become complex ones, then the other dimensions follow.
    pub fn real_forward(&mut self, op: &Transform, mut data: Vec<W>) -> Vec<Complex<W>> {
        let (last, half) = last_dimension(op);
        let plan = self.real.plan_fft_forward(last);
        let zero = Complex::new(W::zero(), W::zero());
        let mut result = vec![zero; data.len() / last * half];
        data.par_chunks_mut(last).zip(result.par_chunks_mut(half)).for_each_init(
            || vec![zero; plan.get_scratch_len()],
            |scratch, (from, to)| {
                plan.process_with_scratch(from, to, scratch).expect("lengths are those of the plan");
            },
        );
        self.others(op, half, &mut result);
        result
    }

    /// The other dimensions, then complex lines become real ones.
    pub fn real_inverse(&mut self, op: &Transform, mut data: Vec<Complex<W>>) -> Vec<W> {
        let (last, half) = last_dimension(op);
        self.others(op, half, &mut data);
        let plan = self.real.plan_fft_inverse(last);
        let zero = Complex::new(W::zero(), W::zero());
        let mut result = vec![W::zero(); data.len() / half * last];
        data.par_chunks_mut(half).zip(result.par_chunks_mut(last)).for_each_init(
            || vec![zero; plan.get_scratch_len()],
            |scratch, (from, to)| {
                // What symmetry makes zero is not looked at.
                from[0].im = W::zero();
                if last.is_multiple_of(2) {
                    from[half - 1].im = W::zero();
                }
                plan.process_with_scratch(from, to, scratch).expect("lengths and zeros are as the plan wants them");
            },
        );
        result
    }

    /// All dimensions but the last, which has `half` elements.
    fn others(&mut self, op: &Transform, half: usize, data: &mut [Complex<W>]) {
        let lengths: Vec<usize> = op.lengths.iter().map(|length| *length as usize).collect();
        let outer = lengths.len() - 1;
        for at in 0..outer {
            let inner = lengths[at + 1..outer].iter().product::<usize>() * half;
            self.dimension(op, lengths[at], inner, data);
        }
    }
}

/// Elements of a line on the real side and on the complex side.
fn last_dimension(op: &Transform) -> (usize, usize) {
    let last = op.lengths.last().map_or(1, |length| *length as usize);
    (last, last / 2 + 1)
}
