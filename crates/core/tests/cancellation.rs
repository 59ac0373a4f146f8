//! Operations that are given up at every moment, and clients that want too much.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atomr_cuda_core::{Device, DeviceConfig, Fault, GpuError, GpuRef};
use common::{UNBOUNDED, executors, open};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const CLIENTS: u64 = 8;
const DROPS: u32 = 10_000;
const FAULTS: u32 = 20;

/// Ten thousand awaited operations are dropped at random moments while workers die. Every buffer that
/// was written to its end holds what was written, also where its memory belonged before to a buffer
/// that an operation which nobody awaited any more was writing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_dropped_operations_leave_nothing_behind() {
    for config in executors() {
        // Few operations with the worker, so that many are dropped before they were sent.
        let device = open(config.max_in_flight(16).restart_policy(UNBOUNDED)).await;
        let baseline = device.load().await;
        let dropped = Arc::new(AtomicU32::new(0));
        let clients = (0..CLIENTS).map(|seed| tokio::spawn(client(device.client(), seed, dropped.clone())));
        let clients: Vec<_> = clients.collect();
        for fault in 0..FAULTS {
            while dropped.load(Ordering::Relaxed) < fault * (DROPS / FAULTS) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            device.fault(Fault::Kill).await.expect_err("the worker dies");
        }
        for client in clients {
            client.await.expect("no client panics");
        }
        assert!(dropped.load(Ordering::Relaxed) >= DROPS);
        // What nobody awaits is still to finish.
        let marker = device.alloc::<u32>(1).await.expect("allocates");
        device.fill(&marker, 1).await.expect("fills");
        drop(marker);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let load = device.load().await;
            if (load.used_bytes, load.queue_depth, load.in_flight) == (baseline.used_bytes, 0, 0) {
                break;
            }
            assert!(Instant::now() < until, "{load:?}, {} bytes before", baseline.used_bytes);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        device.shutdown().await;
    }
}

async fn client(device: Device, seed: u64, dropped: Arc<AtomicU32>) {
    let mut random = StdRng::seed_from_u64(seed);
    while dropped.load(Ordering::Relaxed) < DROPS {
        let len = random.random_range(1..20_000);
        let kept = written(&device, len, random.random()).await;
        {
            let victim = device.alloc::<u32>(len).await.expect("allocates");
            let call = device.fill(&victim, random.random());
            let patience = Duration::from_micros(random.random_range(0..150));
            let future = async { call.await.map(drop) };
            if random.random_bool(0.5) {
                // Polled once, which sends it or queues it.
                let _ = polled_once(future).await;
                dropped.fetch_add(1, Ordering::Relaxed);
            } else if tokio::time::timeout(patience, future).await.is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Most likely in the memory of the victim, which may still be written.
        let next = written(&device, len, random.random()).await;
        for (buffer, value) in [kept, next] {
            let found = loop {
                if let Some(found) = unless_lost(device.download(&buffer).await) {
                    break found;
                }
            };
            assert!(found.iter().all(|found| *found == value), "client {seed}: {len} elements of {value}");
        }
    }
}

/// A buffer that has been filled, whatever it took.
async fn written(device: &Device, len: usize, value: u32) -> (GpuRef<u32>, u32) {
    let buffer = device.alloc(len).await.expect("allocates");
    while unless_lost(device.fill(&buffer, value).await).is_none() {}
    (buffer, value)
}

/// `None` for what the worker took with it.
fn unless_lost<T>(result: Result<T, GpuError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(GpuError::ContextPoisoned { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Polls a future once, then drops it.
async fn polled_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// One client keeps thousands of operations queued, seven ask for one at a time. In turn, each of the
/// seven waits for what is with the worker and for at most one operation of every other client.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_greedy_client_does_not_starve_the_others() {
    const OPERATIONS: usize = 200;
    let device = open(DeviceConfig::host(0).max_in_flight(8)).await;
    let buffer = device.alloc::<u8>(1 << 20).await.expect("allocates");
    let alone = ask(&device.client(), &buffer, OPERATIONS).await;

    let greedy = device.client();
    let target = device.alloc::<u8>(1 << 20).await.expect("allocates");
    let stop = Arc::new(AtomicU32::new(0));
    let stopped = stop.clone();
    let flood = tokio::spawn(async move {
        let mut sent = 0u64;
        while stopped.load(Ordering::Relaxed) == 0 {
            match greedy.fill(&target, 1).submit() {
                Ok(pending) => drop(pending),
                Err(GpuError::Busy { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
            sent += 1;
        }
        sent
    });
    while device.load().await.queue_depth < 10_000 {
        tokio::task::yield_now().await;
    }
    let modest = (0..7).map(|_| {
        let (client, buffer) = (device.client(), buffer.clone());
        tokio::spawn(async move { ask(&client, &buffer, OPERATIONS).await })
    });
    let mut slowest = Duration::ZERO;
    for client in modest.collect::<Vec<_>>() {
        slowest = slowest.max(client.await.expect("no client panics"));
    }
    let depth = device.load().await.queue_depth;
    stop.store(1, Ordering::Relaxed);
    assert!(flood.await.expect("no panic") > 10_000);
    println!("median of one operation: {alone:?} alone, at most {slowest:?} beside a greedy client and six others");
    assert!(depth > 5_000, "the greedy client kept its queue full: {depth}");
    // Sixteen operations at most are before each of theirs, not ten thousand.
    assert!(slowest < 60 * alone + Duration::from_millis(5), "{slowest:?}, {alone:?} alone");
    device.shutdown().await;
}

/// The median time of one operation.
async fn ask(device: &Device, buffer: &GpuRef<u8>, operations: usize) -> Duration {
    let mut times = Vec::with_capacity(operations);
    for _ in 0..operations {
        let started = Instant::now();
        device.fill(buffer, 2).await.expect("fills");
        times.push(started.elapsed());
    }
    times.sort();
    times[operations / 2]
}
