//! Allocations, and copies between host and device.

use std::time::Instant;

use atomr_cuda_core::HostBuf;
use atomr_cuda_testing::compare::{Side, compare, compare_rates, wanted};

use crate::Bench;
use crate::raw::{Memory, Pinned};

const MIB: usize = 1 << 20;

pub fn run(bench: &Bench) {
    allocation(bench);
    if ["cuda: HostBuf to device", "cuda: device to HostBuf"].iter().any(|name| wanted(name)) {
        host_buffers(bench);
    }
    if ["cuda: plain slice to device", "cuda: device to plain slice"].iter().any(|name| wanted(name)) {
        plain_slices(bench);
    }
}

fn allocation(bench: &Bench) {
    const COUNT: usize = 10_000;
    let device = &bench.low;
    // The segment that the others come from.
    let _first = bench.runtime.block_on(device.alloc::<u8>(MIB)).expect("room for 1 MiB");
    let ours = || {
        for _ in 0..COUNT {
            drop(device.try_alloc::<u8>(MIB).expect("allocates").expect("there is room"));
        }
    };
    let raw = || {
        let started = Instant::now();
        (0..COUNT).for_each(|_| bench.raw.allocate_and_free(MIB));
        let seconds = started.elapsed().as_secs_f64() / COUNT as f64;
        bench.raw.spin();
        seconds
    };
    let sides = vec![Side::batch("ours", COUNT, ours).at_most_us(0.3), Side::timed("raw, cuMemAllocAsync + free", raw)];
    compare("cuda: allocation and drop of 1 MiB", 50, sides);
}

/// Copies of `count` behind each other, each waited for: the host buffer comes back only then.
fn host_buffers(bench: &Bench) {
    const BYTES: usize = 256 * MIB;
    const COUNT: usize = 4;
    let device = &bench.low;
    let buffer = bench.runtime.block_on(device.alloc::<u8>(BYTES)).expect("room for 256 MiB");
    let mut host: HostBuf<u8> = device.host_buffer(BYTES).expect("256 MiB of pinned memory");
    host.fill(1);
    let host = std::cell::Cell::new(Some(host));
    let (memory, pinned) = (Memory::new(BYTES), Pinned::new(BYTES));

    let to_device = || {
        let mut moving = host.take().expect("the last copy gave it back");
        for _ in 0..COUNT {
            moving = device.copy_from_host(moving, &buffer).wait().expect("copies");
        }
        host.set(Some(moving));
    };
    let raw_to_device = || {
        for _ in 0..COUNT {
            bench.raw.to_device(&pinned, &memory);
            bench.raw.spin();
        }
    };
    let to_host = || {
        let mut moving = host.take().expect("the last copy gave it back");
        for _ in 0..COUNT {
            moving = device.copy_to_host(&buffer, moving).wait().expect("copies");
        }
        host.set(Some(moving));
    };
    let raw_to_host = || {
        for _ in 0..COUNT {
            bench.raw.to_host(&memory, &pinned);
            bench.raw.spin();
        }
    };
    let gigabytes = BYTES as f64 / 1e9;
    let sides = vec![
        Side::batch("ours", COUNT, to_device).at_most(1.0 / 0.98),
        Side::batch("raw, cuMemHostAlloc", COUNT, raw_to_device),
    ];
    compare_rates("cuda: HostBuf to device, 256 MiB", 20, gigabytes, "GB/s", sides);
    let sides = vec![
        Side::batch("ours", COUNT, to_host).at_most(1.0 / 0.98),
        Side::batch("raw, cuMemHostAlloc", COUNT, raw_to_host),
    ];
    compare_rates("cuda: device to HostBuf, 256 MiB", 20, gigabytes, "GB/s", sides);
}

/// `upload` makes a buffer, `download` a vector: their time is in it, as callers have it. The raw
/// copies write to memory that is there, except where their name says so.
fn plain_slices(bench: &Bench) {
    const BYTES: usize = 1024 * MIB;
    let (device, runtime) = (&bench.low, &bench.runtime);
    let mut plain = vec![1u8; BYTES];
    let buffer = runtime.block_on(device.upload(&plain)).expect("room for 1 GiB");
    let (memory, pinned) = (Memory::with(&plain), Pinned::new(BYTES));
    let gigabytes = BYTES as f64 / 1e9;

    let upload = || {
        let started = Instant::now();
        let made = runtime.block_on(device.upload(&plain)).expect("uploads");
        let seconds = started.elapsed().as_secs_f64();
        drop(made);
        seconds
    };
    let raw_pinned = || {
        bench.raw.to_device(&pinned, &memory);
        bench.raw.spin();
    };
    let sides = vec![
        Side::timed("ours, upload", upload),
        Side::batch("raw, cuMemHostAlloc", 1, raw_pinned),
        Side::batch("raw, pageable", 1, || memory.write(&plain)),
    ];
    compare_rates("cuda: plain slice to device, 1 GiB", 7, gigabytes, "GB/s", sides);

    let download = || {
        let started = Instant::now();
        let made = runtime.block_on(device.download(&buffer)).expect("downloads");
        let seconds = started.elapsed().as_secs_f64();
        drop(made);
        seconds
    };
    let raw_pinned = || {
        bench.raw.to_host(&memory, &pinned);
        bench.raw.spin();
    };
    let raw_new = || {
        let started = Instant::now();
        // Zeroed by the kernel page by page as it is written first, like any new vector of this size.
        let mut made = vec![0u8; BYTES];
        memory.read(&mut made);
        let seconds = started.elapsed().as_secs_f64();
        drop(made);
        seconds
    };
    let sides = vec![
        Side::timed("ours, download", download),
        Side::batch("raw, cuMemHostAlloc", 1, raw_pinned),
        Side::timed("raw, pageable, a new vector", raw_new),
        Side::batch("raw, pageable", 1, || memory.read(&mut plain)),
    ];
    compare_rates("cuda: device to plain slice, 1 GiB", 7, gigabytes, "GB/s", sides);
}
