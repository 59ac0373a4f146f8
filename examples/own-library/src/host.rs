//! The host half: what the kernels do, in plain Rust.

use atomr_cuda_core::executor::{HostCall, HostLibrary, HostSetup, Step, unknown_operation};
use atomr_cuda_core::{Operation, Result};

use crate::op::{CrossEntropy, LIBRARY, Softmax};

/// Makes the host half of one stream.
pub(crate) fn new(_setup: &HostSetup) -> Result<Box<dyn HostLibrary>> {
    Ok(Box::new(HostRowwise))
}

struct HostRowwise;

impl HostLibrary for HostRowwise {
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step> {
        match call.code() {
            Softmax::CODE => softmax(call),
            CrossEntropy::CODE => cross_entropy(call),
            code => Err(unknown_operation(LIBRARY, code)),
        }?;
        Ok(Step::Done)
    }
}

fn softmax(call: &mut HostCall<'_>) -> Result<()> {
    let op: Softmax = call.params()?;
    let columns = op.columns as usize;
    let (x, y, log_sums) = (call.read::<f32>(0)?, call.write::<f32>(1)?, call.write::<f32>(2)?);
    for ((x, y), log_sum) in x.chunks_exact(columns).zip(y.chunks_exact_mut(columns)).zip(log_sums) {
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // An infinity less itself would be NaN.
        let base = if largest.is_finite() { largest } else { 0.0 };
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - base).exp());
        let sum: f64 = y.iter().map(|y| f64::from(*y)).sum();
        y.iter_mut().for_each(|y| *y /= sum as f32);
        *log_sum = base + sum.ln() as f32;
    }
    Ok(())
}

fn cross_entropy(call: &mut HostCall<'_>) -> Result<()> {
    let op: CrossEntropy = call.params()?;
    let (x, log_sums, labels) = (call.read::<f32>(0)?, call.read::<f32>(1)?, call.read::<u32>(2)?);
    let (mut sum, mut wrong) = (0.0f64, 0u64);
    for ((x, log_sum), label) in x.chunks_exact(op.columns as usize).zip(log_sums).zip(labels).take(op.rows as usize) {
        match x.get(*label as usize) {
            Some(x) => sum += f64::from(*log_sum) - f64::from(*x),
            None => wrong += 1,
        }
    }
    call.reply(sum);
    call.reply(wrong);
    Ok(())
}
