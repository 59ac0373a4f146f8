//! A CUDA device beside cuBLAS and the driver called directly, from a context of this process, in one
//! run, the sides alternating. Prints one JSON line a benchmark; an argument picks those that have it
//! in their name.

mod large;
mod memory;
mod raw;
mod small;

use std::time::Duration;

use atomr_cuda_core::{Device, DeviceConfig, Latency, SparePolicy, cuda_available};
use atomr_cuda_testing::{open, processor};
use tokio::runtime::Runtime;

use raw::Raw;

fn main() {
    atomr_cuda_core::worker::init();
    if !cuda_available() {
        println!("skipped: no CUDA device");
        return;
    }
    if !raw::cublas_present() {
        println!("skipped: no cuBLAS library");
        return;
    }
    let runtime = Runtime::new().expect("a tokio runtime");
    // As most applications have it: default latency, and a spare that stands by.
    let device = runtime.block_on(open(DeviceConfig::new(0)));
    idle(&runtime, &device);
    runtime.block_on(device.shutdown());

    let config = DeviceConfig::new(0).spare(SparePolicy::Cold);
    let balanced = runtime.block_on(open(config.clone()));
    let low = runtime.block_on(open(config.latency(Latency::LowLatency)));
    let raw = Raw::new();
    let bench = Bench { runtime, low, balanced, raw };
    small::run(&bench);
    memory::run(&bench);
    large::run(&bench);
    let Bench { runtime, low, balanced, .. } = &bench;
    runtime.block_on(async { tokio::join!(low.shutdown(), balanced.shutdown()) });
}

struct Bench {
    runtime: Runtime,
    /// A device that is set to low latency.
    low: Device,
    /// The same GPU with default latency.
    balanced: Device,
    raw: Raw,
}

/// Runs before this process has a context of its own, which would be counted too.
fn idle(runtime: &Runtime, device: &Device) {
    // The spare starts after the device is ready, and takes about half a second.
    std::thread::sleep(Duration::from_secs(3));
    drop(runtime.block_on(device.upload(&[0.0f32; 16])).expect("uploads"));
    let (application, worker) = (std::process::id(), device.worker_pid().expect("it is up"));
    let mut processes = vec![("application", application), ("worker", worker)];
    let spares = processor::children(application).into_iter().filter(|child| *child != worker);
    processes.extend(spares.map(|spare| ("spare", spare)));
    processor::report_idle("cuda: one device, idle for 5 s", Duration::from_secs(5), &processes);
}
