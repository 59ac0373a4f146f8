//! The hot path: allocation, one tiny operation awaited and waited for, a pipeline of them; beside
//! the floor, a ping-pong between two processes over the same shared memory.

use std::time::Instant;

use atomr_core::prelude::{ActorSystem, Config};
use atomr_cuda_core::{Device, DeviceConfig, Latency, SparePolicy};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;

fn device(runtime: &Runtime) -> Device {
    let config =
        DeviceConfig::host(0).latency(Latency::LowLatency).spare(SparePolicy::Cold).pending_queue_capacity(2_000_000);
    runtime.block_on(async {
        let system = ActorSystem::create("bench", Config::reference()).await.expect("an actor system");
        let device = Device::open(&system, config).await.expect("a host device");
        drop(device.upload(&[0u8; 16]).await.expect("uploads"));
        device
    })
}

fn hot_path(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let device = device(&runtime);
    let buffer = runtime.block_on(device.alloc::<f32>(16)).expect("allocates");

    c.bench_function("alloc and drop 1 MiB", |b| {
        b.iter(|| device.try_alloc::<f32>(1 << 18).expect("allocates").expect("there is room"));
    });
    c.bench_function("fill 16 elements, blocking wait", |b| {
        b.iter(|| device.fill(&buffer, 1.0).wait().expect("fills"))
    });
    c.bench_function("fill 16 elements, awaited in tokio", |b| {
        b.to_async(&runtime).iter(|| async { device.fill(&buffer, 1.0).await.expect("fills") });
    });

    let mut pipeline = c.benchmark_group("pipelined");
    pipeline.throughput(Throughput::Elements(100_000)).sample_size(20);
    pipeline.bench_function("fill 16 elements, 100,000 submitted, last one waited for", |b| {
        b.iter(|| {
            for _ in 1..100_000 {
                drop(device.fill(&buffer, 1.0).submit().expect("queued"));
            }
            device.fill(&buffer, 2.0).wait().expect("fills");
        });
    });
    pipeline.finish();

    let mut flat = c.benchmark_group("submit with buffers alive");
    for buffers in [0usize, 10_000, 50_000, 100_000] {
        let _alive: Vec<_> =
            (0..buffers).map(|_| runtime.block_on(device.alloc::<f32>(16)).expect("allocates")).collect();
        flat.bench_function(format!("{buffers}"), |b| b.iter(|| device.fill(&buffer, 1.0).wait().expect("fills")));
    }
    flat.finish();

    let mut deep = c.benchmark_group("submit, nth of a million");
    deep.sample_size(10);
    deep.bench_function("1,000,000 submitted", |b| {
        b.iter_batched(
            || (),
            |()| {
                let mut marks = Vec::new();
                let started = Instant::now();
                for i in 1..=1_000_000u32 {
                    drop(device.fill(&buffer, 1.0).submit().expect("queued"));
                    if i % 250_000 == 0 {
                        marks.push(started.elapsed().as_nanos() as f64 / f64::from(i));
                    }
                }
                device.fill(&buffer, 2.0).wait().expect("fills");
                marks
            },
            BatchSize::PerIteration,
        );
    });
    deep.finish();
    runtime.block_on(device.shutdown());
}

criterion_group!(benches, hot_path);
criterion_main!(benches);
