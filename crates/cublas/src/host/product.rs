//! Matrix products on the `gemm` crate.

use atomr_cuda_core::executor::HostCall;
use atomr_cuda_core::{Operation, Result};
use gemm::Parallelism;

use crate::op::{Gemm, Gemv, Layout, Operand};

use super::element::Element;
use super::matrix::{MatrixMut, MatrixRef, Shape};
use super::violation;

/// Columns of C that half types are computed at a time.
const BLOCK: usize = 512;

pub(super) fn gemm<T: Element>(call: &mut HostCall<'_>, threads: usize) -> Result<()> {
    let op: Gemm = call.params()?;
    let (a, b, c) = (call.read::<T>(0)?, call.read::<T>(1)?, call.write::<T>(2)?);
    let shape_of = |operand: Operand, transpose: bool| matrix_shape(op.layout, operand, transpose);
    let at = |operand: Operand, problem: u64| size(operand.stride.saturating_mul(problem));
    for problem in 0..op.problems() {
        let a = a.get(at(op.a(), problem)..).and_then(|a| MatrixRef::new(a, shape_of(op.a(), op.transpose_a)));
        let b = b.get(at(op.b(), problem)..).and_then(|b| MatrixRef::new(b, shape_of(op.b(), op.transpose_b)));
        let c = c.get_mut(at(op.c(), problem)..).and_then(|c| MatrixMut::new(c, shape_of(op.c(), false)));
        let a = a.ok_or_else(|| violation(Gemm::NAME, "a"))?;
        let b = b.ok_or_else(|| violation(Gemm::NAME, "b"))?;
        let mut c = c.ok_or_else(|| violation(Gemm::NAME, "c"))?;
        multiply(&mut c, &a, &b, [op.alpha, op.beta], threads);
    }
    Ok(())
}

pub(super) fn gemv<T: Element>(call: &mut HostCall<'_>, threads: usize) -> Result<()> {
    let op: Gemv = call.params()?;
    let (a, x, y) = (call.read::<T>(0)?, call.read::<T>(1)?, call.write::<T>(2)?);
    let column = |count: u64, increment: u64| Shape {
        rows: size(count),
        columns: 1,
        row_stride: size(increment),
        column_stride: 1,
    };
    let a = MatrixRef::new(a, matrix_shape(op.layout, op.a(), op.transpose));
    let a = a.ok_or_else(|| violation(Gemv::NAME, "a"))?;
    let x = MatrixRef::new(x, column(op.x_count(), op.inc_x)).ok_or_else(|| violation(Gemv::NAME, "x"))?;
    let mut y = MatrixMut::new(y, column(op.y_count(), op.inc_y)).ok_or_else(|| violation(Gemv::NAME, "y"))?;
    multiply(&mut y, &a, &x, [op.alpha, op.beta], threads);
    Ok(())
}

/// `c = alpha a b + beta c`. With `alpha` 0, a and b are not read; with `beta` 0, c is not.
fn multiply<T: Element>(
    c: &mut MatrixMut<'_, T>,
    a: &MatrixRef<'_, T>,
    b: &MatrixRef<'_, T>,
    [alpha, beta]: [f64; 2],
    threads: usize,
) {
    let (alpha, beta) = (T::factor(alpha), T::factor(beta));
    if alpha == 0.0 {
        let columns = c.shape().columns;
        c.update(0, columns, |_, _, old| T::from_f64(if beta == 0.0 { 0.0 } else { beta * old.to_f64() }));
    } else {
        T::multiply(c, a, b, [alpha, beta], threads);
    }
}

/// A product in the matrices' own type, which is `f32` or `f64`.
pub(super) fn direct<T: Element>(
    c: &mut MatrixMut<'_, T>,
    a: &MatrixRef<'_, T>,
    b: &MatrixRef<'_, T>,
    [alpha, beta]: [f64; 2],
    threads: usize,
) {
    let (to, lhs, rhs) = (c.shape(), a.shape(), b.shape());
    assert!(
        to.rows == lhs.rows && to.columns == rhs.columns && lhs.columns == rhs.rows,
        "the callers derive all three shapes from one m, n and k"
    );
    let parallelism = if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) };
    // SAFETY: `MatrixRef` and `MatrixMut` were made only after checking that every element of these
    // extents and strides lies in their slices and that each stride fits `isize`; the extents agree
    // (above); c is borrowed mutably, so it overlaps neither a nor b, and its elements are distinct.
    unsafe {
        gemm::gemm(
            to.rows,
            to.columns,
            lhs.columns,
            c.as_mut_ptr(),
            to.column_stride as isize,
            to.row_stride as isize,
            beta != 0.0,
            a.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            b.as_ptr(),
            rhs.column_stride as isize,
            rhs.row_stride as isize,
            T::from_f64(beta),
            T::from_f64(alpha),
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A product of half types: computed and accumulated in `f32`, rounded once.
pub(super) fn widened<T: Element>(
    c: &mut MatrixMut<'_, T>,
    a: &MatrixRef<'_, T>,
    b: &MatrixRef<'_, T>,
    [alpha, beta]: [f64; 2],
    threads: usize,
) {
    let Shape { rows, columns, .. } = c.shape();
    let (alpha, beta) = (alpha as f32, beta as f32);
    let (wide_a, shape_a) = a.widen(0, a.shape().columns, T::to_f32);
    let wide_a = MatrixRef::new(&wide_a, shape_a).expect("`widen` gives the shape of what it made");
    let mut sums = vec![0.0f32; rows * columns.min(BLOCK)];
    for first in (0..columns).step_by(BLOCK) {
        let count = BLOCK.min(columns - first);
        let (wide_b, shape_b) = b.widen(first, count, T::to_f32);
        let wide_b = MatrixRef::new(&wide_b, shape_b).expect("`widen` gives the shape of what it made");
        let dense = Shape { rows, columns: count, row_stride: count, column_stride: 1 };
        let mut block = MatrixMut::new(&mut sums, dense).expect("`sums` holds a block of all rows");
        direct(&mut block, &wide_a, &wide_b, [1.0, 0.0], threads);
        c.update(first, count, |row, column, old| {
            let sum = alpha * sums[row * count + column];
            T::from_f32(if beta == 0.0 { sum } else { sum + beta * old.to_f32() })
        });
    }
}

/// The shape of a stored matrix, or of its transpose.
fn matrix_shape(layout: Layout, operand: Operand, transpose: bool) -> Shape {
    let by_vectors = Shape {
        rows: size(operand.count),
        columns: size(operand.inner),
        row_stride: size(operand.ld),
        column_stride: 1,
    };
    if (layout == Layout::ColumnMajor) != transpose { by_vectors.transposed() } else { by_vectors }
}

/// A size of the front as one of this process; what does not fit lies outside every buffer.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
