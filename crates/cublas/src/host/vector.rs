//! Operations on vectors. Sums are kept in `f64`.

use atomr_cuda_core::executor::HostCall;
use atomr_cuda_core::{Operation, Result};

use crate::op::{Amax, Amin, Asum, Axpy, Copy, Dot, Nrm2, Scal, Swap};

use super::element::Element;
use super::violation;

pub(super) fn axpy<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Axpy = call.params()?;
    let x = elements(Axpy::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    let y = elements_mut(Axpy::NAME, "y", call.write::<T>(1)?, op.n, op.inc_y)?;
    let alpha = T::factor(op.alpha);
    if alpha != 0.0 {
        y.zip(x).for_each(|(y, x)| *y = T::from_f64(alpha * x.to_f64() + y.to_f64()));
    }
    Ok(())
}

pub(super) fn dot<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Dot = call.params()?;
    let x = elements(Dot::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    let y = elements(Dot::NAME, "y", call.read::<T>(1)?, op.n, op.inc_y)?;
    call.reply(T::from_f64(x.zip(y).map(|(x, y)| x.to_f64() * y.to_f64()).sum()));
    Ok(())
}

pub(super) fn nrm2<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Nrm2 = call.params()?;
    let x = elements(Nrm2::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    call.reply(T::from_f64(norm(x.map(|value| value.to_f64()))));
    Ok(())
}

pub(super) fn asum<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Asum = call.params()?;
    let x = elements(Asum::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    call.reply(T::from_f64(x.map(|value| value.to_f64().abs()).sum()));
    Ok(())
}

pub(super) fn scal<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Scal = call.params()?;
    let alpha = T::factor(op.alpha);
    let x = elements_mut(Scal::NAME, "x", call.write::<T>(0)?, op.n, op.inc_x)?;
    x.for_each(|value| *value = T::from_f64(alpha * value.to_f64()));
    Ok(())
}

pub(super) fn copy<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Copy = call.params()?;
    let x = elements(Copy::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    let y = elements_mut(Copy::NAME, "y", call.write::<T>(1)?, op.n, op.inc_y)?;
    y.zip(x).for_each(|(y, x)| *y = *x);
    Ok(())
}

pub(super) fn swap<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Swap = call.params()?;
    let x = elements_mut(Swap::NAME, "x", call.write::<T>(0)?, op.n, op.inc_x)?;
    let y = elements_mut(Swap::NAME, "y", call.write::<T>(1)?, op.n, op.inc_y)?;
    x.zip(y).for_each(|(x, y)| std::mem::swap(x, y));
    Ok(())
}

pub(super) fn amax<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Amax = call.params()?;
    let x = elements(Amax::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    call.reply(extreme(x.map(|value| value.to_f64()), |new, best| new > best));
    Ok(())
}

pub(super) fn amin<T: Element>(call: &mut HostCall<'_>) -> Result<()> {
    let op: Amin = call.params()?;
    let x = elements(Amin::NAME, "x", call.read::<T>(0)?, op.n, op.inc_x)?;
    call.reply(extreme(x.map(|value| value.to_f64()), |new, best| new < best));
    Ok(())
}

/// The Euclidean norm; squares that overflow or vanish are avoided by scaling.
fn norm(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let sum: f64 = x.clone().map(|value| value * value).sum();
    if (1e-280..f64::INFINITY).contains(&sum) || sum.is_nan() {
        return sum.sqrt();
    }
    let largest = x.clone().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if largest == 0.0 || largest.is_infinite() {
        return largest;
    }
    largest * x.map(|value| value / largest).map(|value| value * value).sum::<f64>().sqrt()
}

/// The number, from 1 as cuBLAS counts, of the first |value| that no other one is `better` than.
fn extreme(x: impl Iterator<Item = f64>, better: impl Fn(f64, f64) -> bool) -> i64 {
    let first_best = x.map(f64::abs).zip(1i64..).reduce(|best, new| if better(new.0, best.0) { new } else { best });
    first_best.map_or(0, |(_, number)| number)
}

/// The elements of a strided vector.
fn elements<'a, T>(
    operation: &str,
    argument: &str,
    buffer: &'a [T],
    n: u64,
    increment: u64,
) -> Result<impl Iterator<Item = &'a T> + Clone + use<'a, T>> {
    let (extent, increment) = span(operation, argument, buffer.len(), n, increment)?;
    Ok(buffer[..extent].iter().step_by(increment))
}

/// The elements of a strided vector, to be changed.
fn elements_mut<'a, T>(
    operation: &str,
    argument: &str,
    buffer: &'a mut [T],
    n: u64,
    increment: u64,
) -> Result<impl Iterator<Item = &'a mut T> + use<'a, T>> {
    let (extent, increment) = span(operation, argument, buffer.len(), n, increment)?;
    Ok(buffer[..extent].iter_mut().step_by(increment))
}

/// The elements from the first to behind the last one, and the increment.
fn span(operation: &str, argument: &str, len: usize, n: u64, increment: u64) -> Result<(usize, usize)> {
    let extent = n.checked_sub(1).and_then(|n| n.checked_mul(increment)).and_then(|n| usize::try_from(n).ok());
    match (extent, usize::try_from(increment)) {
        (Some(last), Ok(increment)) if last < len && increment > 0 => Ok((last + 1, increment)),
        _ => Err(violation(operation, argument)),
    }
}

#[cfg(test)]
mod tests {
    use super::{extreme, norm};

    #[test]
    fn norms_neither_overflow_nor_vanish() {
        assert!((norm([3e200, 4e200].into_iter()) / 5e200 - 1.0).abs() < 1e-15);
        assert!((norm([3e-200, 4e-200].into_iter()) / 5e-200 - 1.0).abs() < 1e-15);
        assert_eq!(norm([0.0; 3].into_iter()), 0.0);
        assert_eq!(norm([1.0, f64::NEG_INFINITY].into_iter()), f64::INFINITY);
        assert!(norm([1.0, f64::NAN].into_iter()).is_nan());
    }

    #[test]
    fn the_first_extreme_is_found() {
        assert_eq!(extreme([1.0, -3.0, 3.0].into_iter(), |new, best| new > best), 2);
        assert_eq!(extreme([2.0, -1.0, 1.0].into_iter(), |new, best| new < best), 2);
    }
}
