//! The front and the worker process without a GPU, on the host executor: what the crate itself costs.
//! Beside it, in the same run, the floor: a bare ping-pong between two processes, a bare wake across
//! threads. Prints one JSON line a benchmark; an argument picks those that have it in their name.

mod floor;

use std::time::{Duration, Instant};

use atomr_cuda_core::{Device, DeviceConfig, GpuRef, Latency, SparePolicy};
use atomr_cuda_testing::compare::{Side, compare, compare_rates, wanted};
use atomr_cuda_testing::{fit, open, processor};
use tokio::runtime::Runtime;

use floor::{PingPong, Waker};

const MIB: usize = 1 << 20;
/// Every submission has room: what is measured is not how a full queue is refused.
const QUEUE: usize = 2_000_000;

fn main() {
    floor::echo_if_started_as_such();
    atomr_cuda_core::worker::init();
    let runtime = Runtime::new().expect("a tokio runtime");
    let config = DeviceConfig::host(0).spare(SparePolicy::Cold).pending_queue_capacity(QUEUE);
    let balanced = runtime.block_on(open(config.clone()));
    let low = runtime.block_on(open(config.latency(Latency::LowLatency)));
    let bench = Bench { fill: Tiny::new(&runtime, &low), balanced: Tiny::new(&runtime, &balanced), low, runtime };
    bench.latencies();
    bench.throughput();
    bench.buffers_alive();
    bench.million_submitted();
    let Bench { runtime, low, .. } = bench;
    runtime.block_on(low.shutdown());
    let processes = [("application", std::process::id()), ("worker", balanced.worker_pid().expect("it is up"))];
    processor::report_idle("host: one device, idle for 5 s", Duration::from_secs(5), &processes);
    runtime.block_on(balanced.shutdown());
}

struct Bench {
    runtime: Runtime,
    low: Device,
    fill: Tiny,
    balanced: Tiny,
}

/// The least that an operation can do: a fill of 16 elements.
#[derive(Clone)]
struct Tiny {
    device: Device,
    buffer: GpuRef<f32>,
}

impl Tiny {
    fn new(runtime: &Runtime, device: &Device) -> Self {
        let buffer = runtime.block_on(device.alloc(16)).expect("room for 16 elements");
        Tiny { device: device.clone(), buffer }
    }

    fn wait(&self) {
        self.device.fill(&self.buffer, 1.0).wait().expect("fills");
    }

    fn submit(&self) {
        drop(self.device.fill(&self.buffer, 1.0).submit().expect("there is room in the queue"));
    }

    async fn finish(self) {
        self.device.fill(&self.buffer, 1.0).await.expect("fills");
    }

    /// Seconds a submission, of `count` behind each other. The queue is empty before and after.
    fn dispatch(&self, count: usize) -> f64 {
        let started = Instant::now();
        (0..count).for_each(|_| self.submit());
        let seconds = started.elapsed().as_secs_f64() / count as f64;
        self.wait();
        seconds
    }
}

impl Bench {
    fn latencies(&self) {
        let mut ping_pong = PingPong::new();
        let sides = vec![
            Side::latency("ours, low latency", 1000, || self.fill.wait()),
            Side::latency("ours, default", 1000, || self.balanced.wait()),
            Side::samples("ping-pong", |seconds| ping_pong.play(1000, seconds)),
        ];
        compare("host: fill of 16 elements, blocking", 10, sides);

        let awaited = |name, fill: &Tiny| {
            let fill = fill.clone();
            Side::awaited(name, 500, &self.runtime, move || fill.clone().finish())
        };
        let waker = Waker::new();
        let sides = vec![
            awaited("ours, low latency", &self.fill),
            awaited("ours, default", &self.balanced),
            Side::samples("wake of a task", |seconds| waker.wake(&self.runtime, 500, seconds)),
        ];
        compare("host: fill of 16 elements, awaited in tokio", 10, sides);
    }

    fn throughput(&self) {
        let pipelined = || {
            (1..100_000).for_each(|_| self.fill.submit());
            self.fill.wait();
        };
        let sides = vec![Side::batch("ours", 100_000, pipelined).at_most_us(1.0)];
        compare_rates("host: fills, pipelined", 8, 1.0, "operations/s", sides);

        let allocate = || {
            for _ in 0..10_000 {
                drop(self.low.try_alloc::<u8>(MIB).expect("allocates").expect("there is room"));
            }
        };
        compare("host: allocation and drop of 1 MiB", 100, vec![Side::batch("ours", 10_000, allocate).at_most_us(0.3)]);
    }

    /// The cost of a submission while more and more buffers are alive; up and down, so that a drift of
    /// the machine's speed is not taken for a slope.
    fn buffers_alive(&self) {
        const NAME: &str = "host: submission, by buffers alive";
        if !wanted(NAME) {
            return;
        }
        let counts = [0, 10_000, 25_000, 50_000, 75_000, 100_000];
        let mut points = Vec::new();
        let mut alive = Vec::new();
        for round in 0..20 {
            let mut order = counts;
            if round % 2 == 1 {
                order.reverse();
            }
            for count in order {
                let one_more = || self.low.try_alloc::<f32>(16).expect("allocates").expect("there is room");
                alive.resize_with(count, one_more);
                // As many as the worker takes at a time, twice: the first time warms up.
                self.fill.dispatch(500);
                points.push((count as f64, self.fill.dispatch(500)));
            }
        }
        fit::report(NAME, 100_000.0, &points);
    }

    /// The cost of a submission while a million of them pile up.
    fn million_submitted(&self) {
        const NAME: &str = "host: submission, by number submitted";
        if !wanted(NAME) {
            return;
        }
        const PIECE: usize = 10_000;
        let mut points = Vec::new();
        for _ in 0..3 {
            for piece in 0..1_000_000 / PIECE {
                let started = Instant::now();
                (0..PIECE).for_each(|_| self.fill.submit());
                points.push(((piece * PIECE) as f64, started.elapsed().as_secs_f64() / PIECE as f64));
            }
            self.fill.wait();
        }
        fit::report(NAME, 1_000_000.0, &points);
    }
}
