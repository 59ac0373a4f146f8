//! What the tests of core share.

use std::time::Duration;

use atomr_core::prelude::{ActorSystem, Config};
use atomr_cuda_core::{Device, DeviceConfig, RestartPolicy, cuda_available};

/// Restarts without bound: the tests lose many workers.
#[allow(dead_code)]
pub const UNBOUNDED: RestartPolicy =
    RestartPolicy { max_restarts: u32::MAX, window: Duration::from_secs(60), backoff: Duration::from_millis(10) };

/// The executors there are; a missing one is named.
#[allow(dead_code)]
pub fn executors() -> Vec<DeviceConfig> {
    let mut configs = vec![DeviceConfig::host(0)];
    if cuda_available() {
        configs.push(DeviceConfig::new(0));
    } else {
        eprintln!("skipped: no CUDA device");
    }
    configs
}

/// An actor system for one test.
pub async fn system() -> ActorSystem {
    ActorSystem::create("test", Config::reference()).await.expect("an actor system")
}

/// A device that is ready.
#[allow(dead_code)]
pub async fn open(config: DeviceConfig) -> Device {
    Device::open(&system().await, config).await.expect("a device")
}
