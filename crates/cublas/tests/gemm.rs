//! Matrix products against a reference in `f64`.

use atomr_cuda_core::{Device, bf16, f16};
use atomr_cuda_cublas::{Batch, Blas, Gemm, GemmOptions, Gemv, GemvOptions, Layout, MathMode};
use atomr_cuda_testing::{Element, assert_close, on_every_executor, poison, random, seeded};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Where element (row, column) of `op(X)` lies.
fn place(layout: Layout, transpose: bool, ld: u64, row: u64, column: u64) -> usize {
    let (row, column) = if transpose { (column, row) } else { (row, column) };
    let place = if layout == Layout::RowMajor { row * ld + column } else { column * ld + row };
    place as usize
}

/// Leading dimension and length of a stored matrix.
fn stored(layout: Layout, transpose: bool, rows: u64, columns: u64, ld: Option<u64>) -> (u64, usize) {
    let (rows, columns) = if transpose { (columns, rows) } else { (rows, columns) };
    let (count, inner) = if layout == Layout::RowMajor { (rows, columns) } else { (columns, rows) };
    let ld = ld.unwrap_or(inner);
    (ld, ((count - 1) * ld + inner) as usize)
}

/// Runs `op` on random inputs and compares every element; those between the rows must not change.
async fn check_gemm<T: Element>(device: &Device, op: &Gemm) {
    let mut rng = seeded(op.m * 31 + op.n * 7 + op.k);
    let (ld_a, one_a) = stored(op.layout, op.transpose_a, op.m, op.k, op.ld_a);
    let (ld_b, one_b) = stored(op.layout, op.transpose_b, op.k, op.n, op.ld_b);
    let (ld_c, one_c) = stored(op.layout, false, op.m, op.n, op.ld_c);
    let batch = op.batch.unwrap_or(Batch { count: 1, stride_a: 0, stride_b: 0, stride_c: 0 });
    let last = (batch.count - 1) as usize;
    let a: Vec<T> = random(&mut rng, last * batch.stride_a as usize + one_a);
    let b: Vec<T> = random(&mut rng, last * batch.stride_b as usize + one_b);
    let c_len = last * batch.stride_c as usize + one_c;
    let c: Vec<T> = if op.beta == 0.0 { poison(c_len) } else { random(&mut rng, c_len) };

    let (da, db, dc) =
        (device.upload(&a).await.unwrap(), device.upload(&b).await.unwrap(), device.upload(&c).await.unwrap());
    device.gemm(&da, &db, &dc).map(|made| Gemm { c_len: made.c_len, ..op.clone() }).await.unwrap();
    let found = device.download(&dc).await.unwrap();

    let mut written = vec![false; c_len];
    for problem in 0..batch.count {
        let a = &a[(problem * batch.stride_a) as usize..];
        let b = &b[(problem * batch.stride_b) as usize..];
        let first_c = (problem * batch.stride_c) as usize;
        for row in 0..op.m {
            for column in 0..op.n {
                let (mut sum, mut size) = (0.0, 0.0);
                for inner in 0..op.k {
                    let product = a[place(op.layout, op.transpose_a, ld_a, row, inner)].to_f64()
                        * b[place(op.layout, op.transpose_b, ld_b, inner, column)].to_f64();
                    sum += product;
                    size += product.abs();
                }
                let at = first_c + place(op.layout, false, ld_c, row, column);
                let old = if op.beta == 0.0 { 0.0 } else { op.beta * c[at].to_f64() };
                let (exact, size) = (op.alpha * sum + old, op.alpha.abs() * size + old.abs());
                assert_close::<T>(
                    found[at].to_f64(),
                    exact,
                    op.k as usize,
                    size,
                    &format!("{op:?} at {row}, {column}"),
                );
                written[at] = true;
            }
        }
    }
    for (at, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
        let (new, old) = (found[at].to_f64(), c[at].to_f64());
        assert!(new == old || (new.is_nan() && old.is_nan()), "{op:?}: element {at} between rows has changed");
    }
}

fn gemm(m: u64, n: u64, k: u64) -> Gemm {
    Gemm { m, n, k, ..Gemm::new(0) }
}

async fn check_layouts<T: Element>(device: &Device) {
    for layout in [Layout::RowMajor, Layout::ColumnMajor] {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            for (alpha, beta) in [(1.0, 0.0), (-0.5, 2.0), (0.0, 0.5), (0.0, 0.0)] {
                let dense = Gemm { layout, transpose_a, transpose_b, alpha, beta, ..gemm(7, 13, 5) };
                check_gemm::<T>(device, &dense).await;
                let padded = Gemm { ld_a: Some(17), ld_b: Some(19), ld_c: Some(23), ..dense };
                check_gemm::<T>(device, &padded).await;
            }
        }
    }
}

#[test]
fn every_layout_transposition_and_leading_dimension() {
    on_every_executor(async |device| {
        check_layouts::<f32>(device).await;
        check_layouts::<f64>(device).await;
        check_layouts::<f16>(device).await;
        check_layouts::<bf16>(device).await;
    });
}

#[test]
fn sizes_around_the_blocks_of_the_kernels() {
    on_every_executor(async |device| {
        for (m, n, k) in [(1, 1, 1), (1, 37, 65), (63, 1, 129), (127, 129, 1), (65, 600, 33), (130, 70, 515)] {
            check_gemm::<f32>(device, &gemm(m, n, k)).await;
            check_gemm::<f64>(device, &gemm(m, n, k)).await;
            check_gemm::<f16>(device, &gemm(m, n, k)).await;
            check_gemm::<bf16>(device, &gemm(m, n, k)).await;
        }
    });
}

#[test]
fn batches_behind_each_other_shared_and_side_by_side() {
    on_every_executor(async |device| {
        let batch = |stride_a, stride_b, stride_c| Some(Batch { count: 5, stride_a, stride_b, stride_c });
        let cases = [
            Gemm { batch: batch(12, 20, 15), ..gemm(3, 5, 4) },
            Gemm { batch: batch(0, 21, 17), beta: 0.5, ..gemm(3, 5, 4) },
            Gemm { batch: batch(12, 0, 15), layout: Layout::ColumnMajor, ..gemm(3, 5, 4) },
            Gemm { batch: batch(4, 5, 5), ld_a: Some(20), ld_b: Some(25), ld_c: Some(25), ..gemm(3, 5, 4) },
        ];
        for case in &cases {
            check_gemm::<f32>(device, case).await;
            check_gemm::<f64>(device, case).await;
            check_gemm::<f16>(device, case).await;
            check_gemm::<bf16>(device, case).await;
        }
    });
}

#[test]
fn without_alpha_the_inputs_are_not_read() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let system = atomr_core::actor::ActorSystem::create("test", Default::default()).await.unwrap();
        let device = Device::open(&system, atomr_cuda_core::DeviceConfig::host(0)).await.unwrap();
        let a = device.upload(&poison::<f32>(4)).await.unwrap();
        let c = device.upload(&[1.0f32, 2.0, 3.0, 4.0]).await.unwrap();
        device.gemm(&a, &a, &c).shape(2, 2, 2).alpha(0.0).beta(2.0).await.unwrap();
        assert_eq!(device.download(&c).await.unwrap(), [2.0, 4.0, 6.0, 8.0]);
    });
}

#[test]
fn math_modes_of_single_precision() {
    on_every_executor(async |device| {
        check_gemm::<f32>(device, &Gemm { math: MathMode::Pedantic, ..gemm(33, 65, 17) }).await;
        check_gemm::<f64>(device, &Gemm { math: MathMode::Pedantic, ..gemm(33, 65, 17) }).await;
        // Ones are exact in TF32 too.
        let ones = device.upload(&[1.0f32; 64 * 64]).await.unwrap();
        let c = device.upload(&poison::<f32>(64 * 64)).await.unwrap();
        device.gemm(&ones, &ones, &c).shape(64, 64, 64).math(MathMode::Tf32).await.unwrap();
        assert_eq!(device.download(&c).await.unwrap(), [64.0f32; 64 * 64]);
    });
}

/// Runs `op` on random inputs and compares every element of y.
async fn check_gemv<T: Element>(device: &Device, op: &Gemv) {
    let mut rng = seeded(op.m * 31 + op.n);
    let (ld, a_len) = stored(op.layout, false, op.m, op.n, op.ld_a);
    let (terms, results) = if op.transpose { (op.m, op.n) } else { (op.n, op.m) };
    let a: Vec<T> = random(&mut rng, a_len);
    let x: Vec<T> = random(&mut rng, ((terms - 1) * op.inc_x + 1) as usize);
    let y_len = ((results - 1) * op.inc_y + 1) as usize;
    let y: Vec<T> = if op.beta == 0.0 { poison(y_len) } else { random(&mut rng, y_len) };
    let (da, dx, dy) =
        (device.upload(&a).await.unwrap(), device.upload(&x).await.unwrap(), device.upload(&y).await.unwrap());
    device.gemv(&da, &dx, &dy).map(|made| Gemv { y_len: made.y_len, ..op.clone() }).await.unwrap();
    let found = device.download(&dy).await.unwrap();
    for result in 0..results {
        let (mut sum, mut size) = (0.0, 0.0);
        for term in 0..terms {
            let product =
                a[place(op.layout, op.transpose, ld, result, term)].to_f64() * x[(term * op.inc_x) as usize].to_f64();
            sum += product;
            size += product.abs();
        }
        let at = (result * op.inc_y) as usize;
        let old = if op.beta == 0.0 { 0.0 } else { op.beta * y[at].to_f64() };
        let (exact, size) = (op.alpha * sum + old, op.alpha.abs() * size + old.abs());
        assert_close::<T>(found[at].to_f64(), exact, terms as usize, size, &format!("{op:?} at {result}"));
    }
}

async fn check_gemv_cases<T: Element>(device: &Device) {
    for layout in [Layout::RowMajor, Layout::ColumnMajor] {
        for transpose in [false, true] {
            for (alpha, beta) in [(1.0, 0.0), (-0.5, 2.0), (0.0, 0.5)] {
                let dense = Gemv { m: 37, n: 65, layout, transpose, alpha, beta, ..Gemv::new(0) };
                check_gemv::<T>(device, &dense).await;
                check_gemv::<T>(device, &Gemv { ld_a: Some(71), inc_x: 2, inc_y: 3, ..dense }).await;
            }
        }
    }
}

#[test]
fn matrix_times_vector() {
    on_every_executor(async |device| {
        check_gemv_cases::<f32>(device).await;
        check_gemv_cases::<f64>(device).await;
        check_gemv_cases::<f16>(device).await;
        check_gemv_cases::<bf16>(device).await;
        let (a, x) =
            (device.upload(&[1.0f32, 2.0, 3.0, 4.0]).await.unwrap(), device.upload(&[1.0f32, 1.0]).await.unwrap());
        let y = device.upload(&poison::<f32>(2)).await.unwrap();
        device.gemv(&a, &x, &y).shape(2, 2).transpose().await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [4.0, 6.0]);
    });
}

/// Any shape, padding and factors, in two types.
#[test]
fn any_shape() {
    let pad = || prop::option::of(0u64..9);
    let strategy = (
        1u64..40,
        1u64..40,
        1u64..40,
        any::<[bool; 3]>(),
        (pad(), pad(), pad()),
        prop::sample::select(vec![0.0, 1.0, -1.5]),
    );
    on_every_executor(async |device| {
        let mut runner = TestRunner::deterministic();
        for _ in 0..64 {
            let case = strategy.new_tree(&mut runner).unwrap().current();
            let (m, n, k, [column_major, transpose_a, transpose_b], (pad_a, pad_b, pad_c), beta) = case;
            let layout = if column_major { Layout::ColumnMajor } else { Layout::RowMajor };
            // More than any row or column of these shapes.
            let ld = |pad: Option<u64>| pad.map(|pad| 40 + pad);
            let op = Gemm {
                layout,
                transpose_a,
                transpose_b,
                beta,
                ld_a: ld(pad_a),
                ld_b: ld(pad_b),
                ld_c: ld(pad_c),
                ..gemm(m, n, k)
            };
            check_gemm::<f32>(device, &op).await;
            check_gemm::<bf16>(device, &op).await;
        }
    });
}
