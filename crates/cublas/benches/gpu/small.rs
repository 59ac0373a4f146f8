//! Operations that take the GPU next to no time: what is measured is the way to it and back.

use atomr_cuda_core::{Call, Device, GpuRef};
use atomr_cuda_cublas::{Blas, Gemm, GemmOptions};
use atomr_cuda_testing::compare::{Side, compare, wanted};
use atomr_cuda_testing::{random, seeded};
use tokio::runtime::Runtime;

use crate::Bench;
use crate::raw::Memory;

const N: usize = 16;
const PIPELINED: usize = 20_000;

pub fn run(bench: &Bench) {
    let names = ["blocking", "awaited in tokio", "pipelined"].map(|how| format!("cuda: sgemm 16, {how}"));
    if names.iter().any(|name| wanted(name)) {
        sgemm(bench, &names);
    }
    fill(bench);
}

/// A product of two small matrices on a device.
#[derive(Clone)]
struct Sgemm {
    device: Device,
    a: GpuRef<f32>,
    b: GpuRef<f32>,
    c: GpuRef<f32>,
}

impl Sgemm {
    fn new(runtime: &Runtime, device: &Device, a: &[f32], b: &[f32]) -> Self {
        runtime.block_on(async {
            let (a, b) = (device.upload(a).await.expect("uploads"), device.upload(b).await.expect("uploads"));
            let c = device.alloc(N * N).await.expect("room for the product");
            Sgemm { device: device.clone(), a, b, c }
        })
    }

    fn call(&self) -> Call<Gemm> {
        self.device.gemm(&self.a, &self.b, &self.c).shape(N, N, N)
    }

    fn wait(&self) {
        self.call().wait().expect("a product");
    }

    async fn finish(self) {
        self.call().await.expect("a product");
    }
}

fn sgemm(bench: &Bench, [blocking, awaited, pipelined]: &[String; 3]) {
    let mut rng = seeded(1);
    let (a, b) = (random::<f32>(&mut rng, N * N), random::<f32>(&mut rng, N * N));
    let low = Sgemm::new(&bench.runtime, &bench.low, &a, &b);
    let balanced = Sgemm::new(&bench.runtime, &bench.balanced, &a, &b);
    let (a, b, c) = (Memory::with(&a), Memory::with(&b), Memory::new(N * N * size_of::<f32>()));
    let launch = || bench.raw.sgemm(N as i64, &a, &b, &c);
    let raw_query = || {
        launch();
        bench.raw.spin_query();
    };
    let raw_spin = || {
        launch();
        bench.raw.spin();
    };

    let sides = vec![
        Side::latency("ours, low latency", 200, || low.wait()).at_most(1.10),
        Side::latency("ours, default", 200, || balanced.wait()),
        Side::latency("raw, cuStreamQuery", 200, raw_query),
        Side::latency("raw, cuStreamWriteValue64", 200, raw_spin),
    ];
    compare(blocking, 25, sides);

    let task = |name, sgemm: &Sgemm| {
        let sgemm = sgemm.clone();
        Side::awaited(name, 200, &bench.runtime, move || sgemm.clone().finish())
    };
    let sides = vec![
        task("ours, low latency", &low).at_most(1.35),
        task("ours, default", &balanced),
        Side::latency("raw, cuStreamWriteValue64", 200, raw_spin),
    ];
    compare(awaited, 25, sides);

    let ours = || {
        for _ in 1..PIPELINED {
            drop(low.call().submit().expect("there is room in the queue"));
        }
        low.wait();
    };
    let raw = || {
        (0..PIPELINED).for_each(|_| launch());
        bench.raw.spin();
    };
    let sides = vec![Side::batch("ours", PIPELINED, ours).at_most(1.02), Side::batch("raw", PIPELINED, raw)];
    compare(pipelined, 20, sides);

    same_result(bench, &low, &c);
}

/// Who is fast and wrong has not won.
fn same_result(bench: &Bench, ours: &Sgemm, raw: &Memory) {
    let ours = bench.runtime.block_on(ours.device.download(&ours.c)).expect("downloads");
    let mut other = vec![0.0f32; N * N];
    raw.read(&mut other);
    for (ours, raw) in ours.iter().zip(&other) {
        assert!((ours - raw).abs() < 1e-4, "ours gives {ours}, cuBLAS itself {raw}");
    }
}

/// No work at all: what a kernel that does nothing would show.
fn fill(bench: &Bench) {
    let device = &bench.low;
    let buffer = bench.runtime.block_on(device.alloc::<f32>(N)).expect("room for 16 elements");
    let memory = Memory::new(N * size_of::<f32>());
    let fill = || device.fill(&buffer, 1.0);

    let raw = || {
        bench.raw.fill(&memory, N);
        bench.raw.spin();
    };
    let sides = vec![
        Side::latency("ours, low latency", 200, || fill().wait().expect("fills")),
        Side::latency("raw, cuStreamWriteValue64", 200, raw),
    ];
    compare("cuda: fill of 16 elements, blocking", 25, sides);

    let ours = || {
        for _ in 1..PIPELINED {
            drop(fill().submit().expect("there is room in the queue"));
        }
        fill().wait().expect("fills");
    };
    let raw = || {
        (0..PIPELINED).for_each(|_| bench.raw.fill(&memory, N));
        bench.raw.spin();
    };
    let sides = vec![Side::batch("ours", PIPELINED, ours), Side::batch("raw", PIPELINED, raw)];
    compare("cuda: fill of 16 elements, pipelined", 20, sides);
}
