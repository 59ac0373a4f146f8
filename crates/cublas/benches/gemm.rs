//! `f32` 1024 x 1024 x 1024 through the host device, beside the `gemm` crate called directly.

use std::hint::black_box;

use atomr_core::actor::ActorSystem;
use atomr_cuda_core::{Device, DeviceConfig};
use atomr_cuda_cublas::{Blas, GemmOptions};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const N: usize = 1024;

fn benches(criterion: &mut Criterion) {
    let values: Vec<f32> = (0..N * N).map(|i| (i % 251) as f32 / 251.0).collect();
    let mut group = criterion.benchmark_group("gemm f32 1024");
    group.throughput(Throughput::Elements(2 * (N * N * N) as u64));

    let mut c = vec![0.0f32; N * N];
    group.bench_function("gemm crate", |bencher| bencher.iter(|| multiply(black_box(&values), &values, &mut c)));

    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    runtime.block_on(async {
        let mut configs = vec![("host device", DeviceConfig::host(0))];
        if atomr_cuda_core::cuda_available() {
            configs.push(("CUDA device", DeviceConfig::new(0)));
        }
        for (name, config) in configs {
            let system = ActorSystem::create("bench", Default::default()).await.expect("an actor system");
            let device = Device::open(&system, config).await.expect("a device");
            let a = device.upload(&values).await.expect("room for a");
            let b = device.upload(&values).await.expect("room for b");
            let c = device.alloc::<f32>(N * N).await.expect("room for c");
            let run =
                || tokio::task::block_in_place(|| device.gemm(&a, &b, &c).shape(N, N, N).wait().expect("a product"));
            group.bench_function(name, |bencher| bencher.iter(run));
        }
    });
}

/// The product of row-major `N` x `N` matrices with all cores.
fn multiply(a: &[f32], b: &[f32], c: &mut [f32]) {
    let (row, column) = (N as isize, 1);
    assert!(a.len() == N * N && b.len() == N * N && c.len() == N * N);
    // SAFETY: all three are dense `N` x `N` matrices, and c is borrowed mutably.
    unsafe {
        gemm::gemm(
            N,
            N,
            N,
            c.as_mut_ptr(),
            column,
            row,
            false,
            a.as_ptr(),
            column,
            row,
            b.as_ptr(),
            column,
            row,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}

criterion_group!(group, benches);
criterion_main!(group);
