//! Random programs over shared buffers: whatever the streams, results are those of the order of
//! submission. All numbers are small integers, so that they are exact.

use atomr_cuda_core::{Device, EnabledLibraries, GpuRef, Latency, Priority, SparePolicy, StreamPolicy};
use atomr_cuda_cublas::{Blas, GemmOptions};
use atomr_cuda_testing::{executors, open, seeded};
use rand::Rng;
use rand::rngs::StdRng;

const BUFFERS: usize = 6;
const SIDE: usize = 12;
const LEN: usize = SIDE * SIDE;
const POLICIES: [StreamPolicy; 4] = [
    StreamPolicy::Single,
    StreamPolicy::PerLibrary,
    StreamPolicy::Pool { normal: 4, high: 0 },
    StreamPolicy::Pool { normal: 5, high: 3 },
];

/// One step of a program; the numbers are those of buffers.
#[derive(Debug, Clone)]
enum Step {
    Fill {
        to: usize,
        from: usize,
        len: usize,
        value: f32,
    },
    Copy {
        from: usize,
        to: usize,
    },
    CopyPart {
        from: usize,
        at: usize,
        to: usize,
        place: usize,
        len: usize,
    },
    Axpy {
        alpha: f32,
        x: usize,
        y: usize,
    },
    Swap {
        x: usize,
        y: usize,
    },
    Gemm {
        a: usize,
        b: usize,
        c: usize,
    },
    Halve {
        x: usize,
    },
    /// A buffer is dropped and another, filled, takes its place; most likely in the same memory.
    Renew {
        which: usize,
        value: f32,
    },
}

fn two(rng: &mut StdRng) -> (usize, usize) {
    let first = rng.random_range(0..BUFFERS);
    (first, (first + rng.random_range(1..BUFFERS)) % BUFFERS)
}

fn step(rng: &mut StdRng) -> Step {
    let (one, other) = two(rng);
    let len = rng.random_range(1..=LEN);
    let value = f32::from(rng.random_range(-4i8..=4));
    match rng.random_range(0..8) {
        0 => Step::Fill { to: one, from: rng.random_range(0..=LEN - len), len, value },
        1 => Step::Copy { from: one, to: other },
        2 => {
            let (at, place) = (rng.random_range(0..=LEN - len), rng.random_range(0..=LEN - len));
            Step::CopyPart { from: one, at, to: other, place, len }
        }
        3 => Step::Axpy { alpha: value, x: one, y: other },
        4 => Step::Swap { x: one, y: other },
        5 => {
            let third = (0..BUFFERS).find(|it| *it != one && *it != other).expect("there are six");
            Step::Gemm { a: one, b: other, c: third }
        }
        6 => Step::Halve { x: one },
        _ => Step::Renew { which: one, value },
    }
}

/// The step's effect, in the order of the program.
fn reference(buffers: &mut [Vec<f32>], step: &Step) {
    match *step {
        Step::Fill { to, from, len, value } => buffers[to][from..from + len].fill(value),
        Step::Copy { from, to } => buffers[to] = buffers[from].clone(),
        Step::CopyPart { from, at, to, place, len } => {
            let part = buffers[from][at..at + len].to_vec();
            buffers[to][place..place + len].copy_from_slice(&part);
        }
        Step::Axpy { alpha, x, y } => {
            let x = buffers[x].clone();
            buffers[y].iter_mut().zip(x).for_each(|(y, x)| *y += alpha * x);
        }
        Step::Swap { x, y } => buffers.swap(x, y),
        Step::Gemm { a, b, c } => {
            let (a, b) = (&buffers[a], &buffers[b]);
            let entry = |i: usize| (0..SIDE).map(|k| a[i / SIDE * SIDE + k] * b[k * SIDE + i % SIDE]).sum();
            let product: Vec<f32> = (0..LEN).map(entry).collect();
            buffers[c] = product;
        }
        Step::Halve { x } => buffers[x].iter_mut().for_each(|x| *x *= 0.5),
        Step::Renew { which, value } => buffers[which].fill(value),
    }
}

/// Whether all numbers are still so small that sums of products of them are exact in `f32`.
fn is_exact(buffers: &[Vec<f32>]) -> bool {
    let steps_of_a_quarter = |x: f32| (x * 4.0).fract() == 0.0 && x.abs() <= 128.0;
    buffers.iter().flatten().all(|x| steps_of_a_quarter(*x))
}

/// Submits the step without waiting for anything.
async fn submit(device: &Device, buffers: &mut [GpuRef<f32>], step: &Step, rng: &mut StdRng) {
    let priority = if rng.random_bool(0.3) { Priority::High } else { Priority::Normal };
    match *step {
        Step::Fill { to, from, len, value } => {
            let part = buffers[to].slice(from..from + len).unwrap();
            drop(device.fill(&part, value).priority(priority).submit().unwrap());
        }
        Step::Copy { from, to } => {
            drop(device.copy(&buffers[from], &buffers[to]).priority(priority).submit().unwrap());
        }
        Step::CopyPart { from, at, to, place, len } => {
            let (source, target) = (buffers[from].slice(at..at + len), buffers[to].slice(place..place + len));
            drop(device.copy(&source.unwrap(), &target.unwrap()).priority(priority).submit().unwrap());
        }
        Step::Axpy { alpha, x, y } => {
            let call = device.axpy(f64::from(alpha), &buffers[x], &buffers[y]);
            drop(call.priority(priority).submit().unwrap());
        }
        Step::Swap { x, y } => {
            drop(device.swap(&buffers[x], &buffers[y]).priority(priority).submit().unwrap());
        }
        Step::Gemm { a, b, c } => {
            let call = device.gemm(&buffers[a], &buffers[b], &buffers[c]).shape(SIDE, SIDE, SIDE);
            drop(call.priority(priority).submit().unwrap());
        }
        Step::Halve { x } => drop(device.scal(0.5, &buffers[x]).priority(priority).submit().unwrap()),
        Step::Renew { which, value } => {
            // The old one is dropped while operations that use it may still be in flight.
            buffers[which] = device.alloc(LEN).await.unwrap();
            drop(device.fill(&buffers[which], value).priority(priority).submit().unwrap());
        }
    }
}

async fn run(device: &Device, seed: u64) {
    let mut rng = seeded(seed);
    let mut expected: Vec<Vec<f32>> =
        (0..BUFFERS).map(|_| (0..LEN).map(|_| f32::from(rng.random_range(-4i8..=4))).collect()).collect();
    let mut buffers = Vec::new();
    for values in &expected {
        buffers.push(device.upload(values).await.unwrap());
    }
    let mut program = Vec::new();
    for _ in 0..rng.random_range(1..24) {
        let step = step(&mut rng);
        let mut after = expected.clone();
        reference(&mut after, &step);
        if is_exact(&after) {
            expected = after;
            submit(device, &mut buffers, &step, &mut rng).await;
            program.push(step);
        }
    }
    for (number, (buffer, expected)) in buffers.iter().zip(&expected).enumerate() {
        let found = device.download(buffer).await.unwrap();
        assert!(found == *expected, "seed {seed}, buffer {number}, after {program:#?}");
    }
}

/// 10,000 programs on the host, 2,000 on a GPU, spread over the policies.
#[test]
fn random_programs_give_what_their_order_gives_under_every_policy() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for (name, config) in executors() {
            let programs = if name == "host" { 10_000 } else { 2_000 };
            for (number, policy) in POLICIES.into_iter().enumerate() {
                let config = config.clone().streams(policy).libraries(EnabledLibraries::BLAS);
                let device = open(config.spare(SparePolicy::Cold).latency(Latency::LowLatency)).await;
                let share = programs / POLICIES.len();
                for program in 0..share {
                    run(&device, (number * share + program) as u64).await;
                }
                println!("{share} programs on {name} under {policy:?}");
                device.shutdown().await;
            }
        }
    });
}
