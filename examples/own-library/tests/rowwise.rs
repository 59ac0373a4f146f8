//! The library against a reference in `f64`, on every executor there is.

use atomr_core::actor::{ActorRef, ActorSystem};
use atomr_cuda_core::{Call, Device, DeviceConfig, Fault, GpuError, GpuRef, Operation, Request, cuda_available};
use own_library::{ROWWISE, Rowwise, RowwiseMsg, RowwiseOptions, Softmax};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Runs `case` on the host, and on CUDA where there is a device.
fn on_every_executor(case: impl AsyncFn(&Device)) {
    let mut configs = vec![DeviceConfig::host(0)];
    if cuda_available() {
        configs.push(DeviceConfig::new(0));
    } else {
        println!("on cuda: skipped: no CUDA device");
    }
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        for config in configs {
            println!("on {}", config.label());
            let system = ActorSystem::create("test", Default::default()).await.expect("an actor system");
            let device = Device::open(&system, config.libraries(ROWWISE)).await.expect("a device");
            case(&device).await;
            device.shutdown().await;
        }
    });
}

/// A problem with its solution in `f64`.
struct Problem {
    rows: usize,
    columns: usize,
    x: Vec<f32>,
    labels: Vec<u32>,
    softmax: Vec<f64>,
    log_sums: Vec<f64>,
    loss: f64,
}

impl Problem {
    /// Values from `-size` to `size`.
    fn random(rows: usize, columns: usize, size: f32) -> Self {
        let mut rng = StdRng::seed_from_u64((rows * 31 + columns) as u64);
        let x: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-size..size)).collect();
        let labels: Vec<u32> = (0..rows).map(|_| rng.random_range(0..columns as u32)).collect();
        let (mut softmax, mut log_sums, mut loss) = (Vec::new(), Vec::new(), 0.0);
        for (row, label) in x.chunks_exact(columns).zip(&labels) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
            let sum: f64 = row.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
            softmax.extend(row.iter().map(|x| (f64::from(*x) - largest).exp() / sum));
            log_sums.push(largest + sum.ln());
            loss += largest + sum.ln() - f64::from(row[*label as usize]);
        }
        Problem { rows, columns, x, labels, softmax, log_sums, loss: loss / rows as f64 }
    }

    /// The inputs on a device, and outputs full of NaN.
    async fn upload(&self, device: &Device) -> Uploaded {
        Uploaded {
            x: device.upload(&self.x).await.expect("uploads"),
            labels: device.upload(&self.labels).await.expect("uploads"),
            y: device.upload(&vec![f32::NAN; self.x.len()]).await.expect("uploads"),
            log_sums: device.upload(&vec![f32::NAN; self.rows]).await.expect("uploads"),
        }
    }

    async fn check_softmax(&self, device: &Device, found: &Uploaded) {
        let (y, log_sums) = (device.download(&found.y).await.unwrap(), device.download(&found.log_sums).await.unwrap());
        // x less the largest is rounded once, at its size; the exponential makes an error of its
        // argument a relative one of its value. The rest is the sum's rounding.
        let size = self.x.iter().fold(1.0f64, |size, x| size.max(f64::from(x.abs())));
        let relative = (2.0 * size + self.columns as f64 / 64.0 + 16.0) * f64::from(f32::EPSILON);
        for (place, (found, exact)) in y.iter().zip(&self.softmax).enumerate() {
            let bound = relative * exact + f64::from(f32::MIN_POSITIVE);
            assert!((f64::from(*found) - exact).abs() <= bound, "y[{place}]: {found} instead of {exact}");
        }
        for (row, (found, exact)) in log_sums.iter().zip(&self.log_sums).enumerate() {
            let bound = relative + exact.abs() * f64::from(f32::EPSILON);
            assert!((f64::from(*found) - exact).abs() <= bound, "log_sums[{row}]: {found} instead of {exact}");
        }
    }

    fn check_loss(&self, found: f64) {
        // Of the terms, only the sums' logarithms are rounded.
        let size = self.log_sums.iter().fold(1.0f64, |size, sum| size.max(sum.abs()));
        let bound = (4.0 * size + self.columns as f64 / 64.0 + 16.0) * f64::from(f32::EPSILON);
        assert!((found - self.loss).abs() <= bound, "loss: {found} instead of {}", self.loss);
    }
}

struct Uploaded {
    x: GpuRef<f32>,
    labels: GpuRef<u32>,
    y: GpuRef<f32>,
    log_sums: GpuRef<f32>,
}

/// Rows, columns, size of the values. More rows than a grid's blocks, more columns than a block's
/// threads, and values whose exponentials overflow.
const CASES: [(usize, usize, f32); 8] = [
    (1, 1, 1.0),
    (1, 7, 5.0),
    (3, 256, 1.0),
    (5, 257, 80.0),
    (129, 31, 500.0),
    (2, 50_000, 10.0),
    (70_001, 3, 4.0),
    (33, 1000, 1e4),
];

#[test]
fn agrees_with_the_reference() {
    on_every_executor(async |device| {
        for (rows, columns, size) in CASES {
            let problem = Problem::random(rows, columns, size);
            let on_device = problem.upload(device).await;
            let Uploaded { x, labels, y, log_sums } = &on_device;
            // The second operation needs the first one's result and does not wait for it.
            let softmax = device.softmax(x, y, log_sums).shape(rows, columns).submit().unwrap();
            let loss = device.cross_entropy(x, log_sums, labels).shape(rows, columns).await.unwrap();
            softmax.await.unwrap();
            problem.check_softmax(device, &on_device).await;
            problem.check_loss(loss);
        }
    });
}

#[test]
fn rows_that_are_not_finite() {
    on_every_executor(async |device| {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let x = device.upload(&[0.0, nan, 1.0, -inf, -inf, -inf, 3.0, -inf, 3.0, 1.0, inf, 2.0]).await.unwrap();
        let (y, log_sums) = (device.alloc::<f32>(12).await.unwrap(), device.alloc::<f32>(4).await.unwrap());
        device.softmax(&x, &y, &log_sums).shape(4, 3).await.unwrap();
        let y = device.download(&y).await.unwrap();
        assert!(y[..6].iter().all(|y| y.is_nan()), "{y:?}");
        assert_eq!(y[6..9], [0.5, 0.0, 0.5]);
        assert!(y[10].is_nan(), "{y:?}");
        let log_sums = device.download(&log_sums).await.unwrap();
        assert!(log_sums[0].is_nan(), "{log_sums:?}");
        assert_eq!(log_sums[1], -inf);
        assert!((log_sums[2] - (3.0 + 2f32.ln())).abs() < 1e-6, "{log_sums:?}");
        assert_eq!(log_sums[3], inf);
    });
}

#[test]
fn labels_that_name_no_column() {
    on_every_executor(async |device| {
        let problem = Problem::random(1000, 10, 2.0);
        let Uploaded { x, y, log_sums, .. } = problem.upload(device).await;
        device.softmax(&x, &y, &log_sums).shape(1000, 10).await.unwrap();
        let mut labels = problem.labels.clone();
        (labels[17], labels[500], labels[999]) = (10, u32::MAX, 11);
        let labels = device.upload(&labels).await.unwrap();
        let error = device.cross_entropy(&x, &log_sums, &labels).shape(1000, 10).await.unwrap_err();
        let expected = "rowwise.cross_entropy: `labels`: 3 of 1000 are not less than the 10 columns";
        assert_eq!(error.to_string(), expected);
    });
}

#[test]
fn what_is_refused_before_anything_is_queued() {
    fn refused<O: Operation>(call: Call<O>) -> GpuError {
        match call.submit() {
            Ok(_) => panic!("{} was not refused", O::NAME),
            Err(error) => error,
        }
    }
    on_every_executor(async |device| {
        let Uploaded { x, labels, y, log_sums } = Problem::random(4, 6, 1.0).upload(device).await;
        for error in [
            refused(device.softmax(&x, &y, &log_sums)),
            refused(device.softmax(&x, &y, &log_sums).shape(0, 6)),
            refused(device.cross_entropy(&x, &log_sums, &labels).shape(4, 0)),
        ] {
            assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == "shape"), "{error}");
        }
        let error = refused(device.softmax(&x, &y, &log_sums).shape(usize::MAX, 2));
        assert!(matches!(error, GpuError::SizeOverflow { .. }), "{error}");
        let error = refused(device.softmax(&x, &y, &log_sums).shape(5, 6));
        assert!(matches!(error, GpuError::ShapeMismatch { needed: 30, found: 24, .. }), "{error}");
        let error = refused(device.cross_entropy(&x, &log_sums, &labels).shape(6, 4));
        assert!(matches!(error, GpuError::ShapeMismatch { needed: 6, found: 4, .. }), "{error}");
        let error = refused(device.softmax(&x, &y, &log_sums).shape(4, 5));
        assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == "y"), "{error}");
        let error = refused(device.softmax(&x, &x, &log_sums).shape(4, 6));
        assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
        let wrong_type = Call::new(device, Softmax { rows: 4, columns: 1 }, [x.view(), labels.view(), log_sums.view()]);
        let error = refused(wrong_type);
        assert!(matches!(error, GpuError::DTypeMismatch { .. }), "{error}");
    });
}

#[test]
fn a_worker_that_dies_between_two_uses_is_not_noticed() {
    on_every_executor(async |device| {
        let problem = Problem::random(200, 300, 6.0);
        let on_device = problem.upload(device).await;
        let Uploaded { x, labels, y, log_sums } = &on_device;
        device.softmax(x, y, log_sums).shape(200, 300).await.unwrap();
        let generation = device.generation();
        let error = device.fault(Fault::Kill).await.unwrap_err();
        assert!(matches!(error, GpuError::ContextPoisoned { .. }), "{error}");

        // Inputs and outputs are where they were, and the next worker has the kernels.
        let loss = device.cross_entropy(x, log_sums, labels).shape(200, 300).await.unwrap();
        problem.check_loss(loss);
        problem.check_softmax(device, &on_device).await;
        assert!(device.generation() > generation);
        device.fill(y, f32::NAN).await.unwrap();
        device.softmax(x, y, log_sums).shape(200, 300).await.unwrap();
        problem.check_softmax(device, &on_device).await;
    });
}

#[test]
fn the_actor_serves_the_same_calls() {
    on_every_executor(async |device| {
        let problem = Problem::random(9, 8, 3.0);
        let on_device = problem.upload(device).await;
        let Uploaded { x, labels, y, log_sums } = &on_device;
        let actor: ActorRef<RowwiseMsg> = device.children().extra().expect("the library is up");
        let (softmax, done) = Request::new(device.softmax(x, y, log_sums).shape(9, 8));
        let (cross_entropy, loss) = Request::new(device.cross_entropy(x, log_sums, labels).shape(9, 8));
        actor.tell(RowwiseMsg::Softmax(softmax));
        actor.tell(RowwiseMsg::CrossEntropy(cross_entropy));
        done.await.expect("an answer").unwrap();
        problem.check_loss(loss.await.expect("an answer").unwrap());
        problem.check_softmax(device, &on_device).await;
    });
}

#[test]
fn the_library_must_be_enabled() {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        let system = ActorSystem::create("test", Default::default()).await.expect("an actor system");
        let device = Device::open(&system, DeviceConfig::host(0)).await.expect("a device");
        let Uploaded { x, y, log_sums, .. } = Problem::random(2, 2, 1.0).upload(&device).await;
        let error = device.softmax(&x, &y, &log_sums).shape(2, 2).await.unwrap_err();
        assert!(matches!(error, GpuError::LibraryUnavailable { .. }), "{error}");
        device.shutdown().await;
    });
}
