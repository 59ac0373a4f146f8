//! The host half: `rustfft` and `realfft`, dimension by dimension.

mod element;
mod lines;

use atomr_cuda_core::executor::{HostCall, HostLibrary, HostSetup, Step, unknown_operation};
use atomr_cuda_core::{Complex, DType, Operation, Result, f16};
use rayon::prelude::*;
use rustfft::FftNum;

use crate::op::{Embedding, Kind, LIBRARY, Transform};

use element::Element;
use lines::Lines;

/// Makes the host half of one stream.
pub(crate) fn new(_setup: &HostSetup) -> Result<Box<dyn HostLibrary>> {
    Ok(Box::new(HostFft { singles: Lines::new(), doubles: Lines::new() }))
}

struct HostFft {
    singles: Lines<f32>,
    doubles: Lines<f64>,
}

impl HostLibrary for HostFft {
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step> {
        match call.code() {
            Transform::CODE => {
                let op: Transform = call.params()?;
                match op.types(call.dtype(0)?)?.1 {
                    DType::F16 | DType::C16 => transform::<f16, f32>(&op, &mut self.singles, call),
                    DType::F32 | DType::C32 => transform::<f32, f32>(&op, &mut self.singles, call),
                    _ => transform::<f64, f64>(&op, &mut self.doubles, call),
                }?;
                Ok(Step::Done)
            }
            code => Err(unknown_operation(LIBRARY, code)),
        }
    }
}

/// Transforms of numbers `R`, computed in `W`.
fn transform<R, W: FftNum>(op: &Transform, lines: &mut Lines<W>, call: &mut HostCall<'_>) -> Result<()>
where
    R: Element<Wide = W>,
    Complex<R>: Element<Wide = Complex<W>> + bytemuck::Pod,
{
    let (input, output) = op.embeddings()?;
    let from = Side { layout: &input, lengths: &op.input_lengths(), batch: op.batch };
    let to = Side { layout: &output, lengths: &op.output_lengths(), batch: op.batch };
    let factor = op.factor();
    match (op.kind, op.in_place) {
        (Kind::Forward | Kind::Inverse, false) => {
            let mut data = from.gather(call.read::<Complex<R>>(0)?);
            lines.complex(op, &mut data);
            to.store(&data, factor, call.write::<Complex<R>>(1)?);
        }
        (Kind::Forward | Kind::Inverse, true) => {
            let x = call.write::<Complex<R>>(0)?;
            let mut data = from.gather(x);
            lines.complex(op, &mut data);
            to.store(&data, factor, x);
        }
        (Kind::RealForward, false) => {
            let data = lines.real_forward(op, from.gather(call.read::<R>(0)?));
            to.store(&data, factor, call.write::<Complex<R>>(1)?);
        }
        (Kind::RealForward, true) => {
            let x = call.write::<R>(0)?;
            let data = lines.real_forward(op, from.gather(x));
            to.store(&data, factor, pairs::<R, Complex<R>>(x));
        }
        (Kind::RealInverse, false) => {
            // Taken as written, since a GPU works in it; here it stays as it is.
            let data = lines.real_inverse(op, from.gather(call.write::<Complex<R>>(0)?));
            to.store(&data, factor, call.write::<R>(1)?);
        }
        (Kind::RealInverse, true) => {
            let x = call.write::<R>(0)?;
            let data = lines.real_inverse(op, from.gather(pairs::<R, Complex<R>>(x)));
            to.store(&data, factor, x);
        }
    }
    Ok(())
}

/// Real numbers as pairs of real and imaginary part.
fn pairs<R: bytemuck::Pod, C: bytemuck::Pod>(numbers: &mut [R]) -> &mut [C] {
    let even = numbers.len() / 2 * 2;
    bytemuck::cast_slice_mut(&mut numbers[..even])
}

/// Where one side's elements lie.
struct Side<'a> {
    layout: &'a Embedding,
    lengths: &'a [u64],
    batch: u64,
}

impl Side<'_> {
    fn is_dense(&self) -> bool {
        Embedding::dense(self.lengths).as_ref() == Some(self.layout)
    }

    fn elements(&self) -> usize {
        (self.lengths.iter().product::<u64>() * self.batch) as usize
    }

    /// Where the rows begin (of the last dimension), in order.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let steps = self.layout.steps().unwrap_or_default();
        let outer = self.lengths.len().saturating_sub(1);
        let count = self.lengths[..outer].iter().product::<u64>();
        let lengths = self.lengths[..outer].to_vec();
        let distance = self.layout.distance;
        (0..self.batch).flat_map(move |transform| {
            let (lengths, steps) = (lengths.clone(), steps.clone());
            (0..count).map(move |row| {
                let (mut rest, mut at) = (row, transform * distance);
                for (length, step) in lengths.iter().zip(&steps).rev() {
                    at += rest % length * step;
                    rest /= length;
                }
                at as usize
            })
        })
    }

    /// The elements without gaps.
    fn gather<E: Element>(&self, from: &[E]) -> Vec<E::Wide> {
        if self.is_dense() {
            return from[..self.elements()].par_iter().map(|element| element.widen()).collect();
        }
        let (length, stride) = (self.lengths.last().map_or(1, |length| *length as usize), self.layout.stride as usize);
        self.rows()
            .flat_map(|at| from[at..].iter().step_by(stride).take(length).map(|element| element.widen()))
            .collect()
    }

    /// Puts `factor` times the elements where they belong.
    fn store<E: Element>(&self, data: &[E::Wide], factor: f64, to: &mut [E]) {
        if self.is_dense() {
            to.par_iter_mut().zip(data).for_each(|(to, value)| *to = E::narrow(*value, factor));
            return;
        }
        let (length, stride) = (self.lengths.last().map_or(1, |length| *length as usize), self.layout.stride as usize);
        for (at, line) in self.rows().zip(data.chunks_exact(length)) {
            to[at..].iter_mut().step_by(stride).zip(line).for_each(|(to, value)| *to = E::narrow(*value, factor));
        }
    }
}
