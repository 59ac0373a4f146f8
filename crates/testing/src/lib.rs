//! What the tests and benchmarks of every library share: a case is written once, runs on every
//! executor there is, and is compared with a reference in `f64`. Only a dev-dependency.
#![forbid(unsafe_code)]

pub mod compare;
mod element;
pub mod fit;
pub mod processor;

use atomr_core::actor::ActorSystem;
use atomr_cuda_core::{Device, DeviceConfig, EnabledLibraries};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use element::{Element, assert_close};

/// The host executor always, CUDA where there is a device; a missing one is named. Every library is
/// enabled.
pub fn executors() -> Vec<(&'static str, DeviceConfig)> {
    let mut executors = vec![("host", DeviceConfig::host(0))];
    if atomr_cuda_core::cuda_available() {
        executors.push(("cuda", DeviceConfig::new(0)));
    } else {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        println!("{test} on cuda: skipped: no CUDA device");
    }
    for (_, config) in &mut executors {
        *config = config.clone().libraries(EnabledLibraries::ALL);
    }
    executors
}

/// Runs `case` on every executor.
pub fn on_every_executor(case: impl AsyncFn(&Device)) {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        for (name, config) in executors() {
            println!("on {name}");
            let device = open(config).await;
            case(&device).await;
            device.shutdown().await;
        }
    });
}

/// A device that is ready, in an actor system of its own.
pub async fn open(config: DeviceConfig) -> Device {
    let system = ActorSystem::create("test", Default::default()).await.expect("an actor system");
    Device::open(&system, config).await.expect("a device")
}

/// A generator that gives the same numbers in every run.
pub fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Values from -1 to 1 (both parts, where the type is complex).
pub fn random<T: Element>(rng: &mut StdRng, len: usize) -> Vec<T> {
    let mut part = || rng.random_range(-1.0..1.0);
    (0..len).map(|_| T::from_complex(num_complex::Complex::new(part(), part()))).collect()
}

/// NaN in every place: what is not overwritten, or read though it must not be, shows.
pub fn poison<T: Element>(len: usize) -> Vec<T> {
    vec![T::from_complex(num_complex::Complex::new(f64::NAN, f64::NAN)); len]
}
