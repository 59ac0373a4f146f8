//! Runs a case on every executor there is, with inputs and bounds.
#![allow(dead_code, reason = "each test binary uses a part")]

use atomr_core::actor::ActorSystem;
use atomr_cuda_core::{CudaDtype, Device, DeviceConfig, bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// An element type with the rounding that bounds are made of.
pub trait Element: CudaDtype {
    /// Half the distance from 1 to the next value.
    const EPSILON: f64;
    /// The same for the type in which sums are kept.
    const SUM_EPSILON: f64;
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;
}

macro_rules! elements {
    ($($type:ty: $epsilon:expr, $sum:expr, $to:expr, $from:expr;)*) => {
        $(impl Element for $type {
            const EPSILON: f64 = $epsilon;
            const SUM_EPSILON: f64 = $sum;
            fn to_f64(self) -> f64 { $to(self) }
            fn from_f64(value: f64) -> Self { $from(value) }
        })*
    };
}

const SINGLE: f64 = f32::EPSILON as f64 / 2.0;

elements! {
    f16: 0.5f64 / 1024.0, SINGLE, f16::to_f64, f16::from_f64;
    bf16: 0.5f64 / 128.0, SINGLE, bf16::to_f64, bf16::from_f64;
    f32: SINGLE, SINGLE, f64::from, (|value| value as f32);
    f64: f64::EPSILON / 2.0, f64::EPSILON / 2.0, std::convert::identity, std::convert::identity;
}

/// The host executor always, CUDA where there is a device.
pub fn executors() -> Vec<(&'static str, DeviceConfig)> {
    let mut executors = vec![("host", DeviceConfig::host(0))];
    if atomr_cuda_core::cuda_available() {
        executors.push(("cuda", DeviceConfig::new(0)));
    } else {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        println!("{test} on cuda: skipped: no CUDA device");
    }
    executors
}

/// Runs `case` on every executor.
pub fn on_every_executor(case: impl AsyncFn(&Device)) {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        for (name, config) in executors() {
            println!("on {name}");
            let system = ActorSystem::create("test", Default::default()).await.expect("an actor system");
            let device = Device::open(&system, config).await.expect("a device");
            case(&device).await;
        }
    });
}

/// A generator that gives the same numbers in every run.
pub fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Values from -1 to 1.
pub fn random<T: Element>(rng: &mut StdRng, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f64(rng.random_range(-1.0..1.0))).collect()
}

/// NaN in every place: what is not overwritten, or read though it must not be, shows.
pub fn poison<T: Element>(len: usize) -> Vec<T> {
    vec![T::from_f64(f64::NAN); len]
}

/// Requires `found` within the error of a sum of `terms` products, whose absolute values sum to `size`.
pub fn assert_close<T: Element>(found: f64, exact: f64, terms: usize, size: f64, what: &str) {
    let relative = 2.0 * (terms as f64 + 4.0) * T::SUM_EPSILON + 4.0 * T::EPSILON;
    let bound = relative * (size + exact.abs()) + 1e-7 * T::EPSILON.max(SINGLE) / SINGLE * f64::from(T::EPSILON > 1e-6);
    let error = (found - exact).abs();
    assert!(error <= bound, "{what} ({}): {found} is {error:e} from {exact}, more than {bound:e}", T::DTYPE);
}
