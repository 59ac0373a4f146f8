//! Vector operations against a reference in `f64`.

use atomr_cuda_core::{Device, bf16, f16};
use atomr_cuda_cublas::{Blas, PairOptions, VectorOptions};
use atomr_cuda_testing::{Element, assert_close, on_every_executor, random, seeded};

/// Length, increments.
const CASES: [(usize, usize, usize); 5] = [(1, 1, 1), (17, 1, 1), (1000, 1, 3), (333, 2, 1), (4097, 3, 2)];

fn len(n: usize, increment: usize) -> usize {
    (n - 1) * increment + 1
}

fn picked<T: Element>(values: &[T], n: usize, increment: usize) -> Vec<f64> {
    values.iter().step_by(increment).take(n).map(|value| value.to_f64()).collect()
}

async fn check_float<T: Element>(device: &Device) {
    for (n, inc_x, inc_y) in CASES {
        let mut rng = seeded(n as u64);
        let (x, y): (Vec<T>, Vec<T>) = (random(&mut rng, len(n, inc_x)), random(&mut rng, len(n, inc_y)));
        let (dx, dy) = (device.upload(&x).await.unwrap(), device.upload(&y).await.unwrap());
        let (xs, ys) = (picked(&x, n, inc_x), picked(&y, n, inc_y));

        let dot = device.dot(&dx, &dy).count(n).inc_x(inc_x).inc_y(inc_y).await.unwrap();
        let products = || xs.iter().zip(&ys).map(|(x, y)| x * y);
        assert_close::<T>(dot, products().sum(), n, products().map(f64::abs).sum(), "dot");

        let nrm2 = device.nrm2(&dx).count(n).inc_x(inc_x).await.unwrap();
        let exact = xs.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert_close::<T>(nrm2, exact, n, exact, "nrm2");

        device.axpy(-0.75, &dx, &dy).count(n).inc_x(inc_x).inc_y(inc_y).await.unwrap();
        let found = picked(&device.download(&dy).await.unwrap(), n, inc_y);
        for ((found, x), y) in found.iter().zip(&xs).zip(&ys) {
            assert_close::<T>(*found, -0.75 * x + y, 1, x.abs() + y.abs(), "axpy");
        }

        device.scal(1.5, &dx).count(n).inc_x(inc_x).await.unwrap();
        let found = device.download(&dx).await.unwrap();
        for (place, (found, old)) in found.iter().zip(&x).enumerate() {
            let exact = if place % inc_x == 0 { 1.5 * old.to_f64() } else { old.to_f64() };
            assert_close::<T>(found.to_f64(), exact, 1, exact.abs(), "scal");
        }
    }
}

async fn check_single_or_double<T: Element + PartialEq>(device: &Device) {
    for (n, inc_x, inc_y) in CASES {
        let mut rng = seeded(n as u64);
        let (x, y): (Vec<T>, Vec<T>) = (random(&mut rng, len(n, inc_x)), random(&mut rng, len(n, inc_y)));
        let (dx, dy) = (device.upload(&x).await.unwrap(), device.upload(&y).await.unwrap());
        let (xs, ys) = (picked(&x, n, inc_x), picked(&y, n, inc_y));

        let asum = device.asum(&dx).count(n).inc_x(inc_x).await.unwrap();
        let exact: f64 = xs.iter().map(|x| x.abs()).sum();
        assert_close::<T>(asum, exact, n, exact, "asum");

        let first_extreme = |better: fn(f64, f64) -> bool| {
            (1..n).fold(0, |best, i| if better(xs[i].abs(), xs[best].abs()) { i } else { best }) as u64
        };
        assert_eq!(device.amax(&dx).count(n).inc_x(inc_x).await.unwrap(), first_extreme(|new, best| new > best));
        assert_eq!(device.amin(&dx).count(n).inc_x(inc_x).await.unwrap(), first_extreme(|new, best| new < best));

        device.swap(&dx, &dy).count(n).inc_x(inc_x).inc_y(inc_y).await.unwrap();
        assert_eq!(picked(&device.download(&dx).await.unwrap(), n, inc_x), ys);
        assert_eq!(picked(&device.download(&dy).await.unwrap(), n, inc_y), xs);

        device.copy_vector(&dx, &dy).count(n).inc_x(inc_x).inc_y(inc_y).await.unwrap();
        let found = device.download(&dy).await.unwrap();
        assert_eq!(picked(&found, n, inc_y), ys);
        for place in (0..found.len()).filter(|place| place % inc_y != 0) {
            assert!(found[place] == y[place], "element {place} between those of y has changed");
        }
    }
}

#[test]
fn operations_of_every_type() {
    on_every_executor(async |device| {
        check_float::<f32>(device).await;
        check_float::<f64>(device).await;
        check_float::<f16>(device).await;
        check_float::<bf16>(device).await;
    });
}

#[test]
fn operations_of_single_and_double() {
    on_every_executor(async |device| {
        check_single_or_double::<f32>(device).await;
        check_single_or_double::<f64>(device).await;
    });
}

#[test]
fn whole_vectors_by_default() {
    on_every_executor(async |device| {
        let x = device.upload(&[3.0f64, -4.0]).await.unwrap();
        let y = device.alloc::<f64>(2).await.unwrap();
        device.copy_vector(&x, &y).await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [3.0, -4.0]);
        assert_eq!(device.nrm2(&y).await.unwrap(), 5.0);
        assert_eq!(device.amax(&y).await.unwrap(), 1);
        let large = device.upload(&[3e200f64, 4e200]).await.unwrap();
        let norm = device.nrm2(&large).await.unwrap();
        assert!((norm / 5e200 - 1.0).abs() < 1e-15, "{norm}");
    });
}
