//! Transforms on a CUDA device beside cuFFT called directly from a context of this process, in one run,
//! the sides alternating. Prints one JSON line a benchmark.

use std::ptr::null_mut;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{Complex, Device, DeviceConfig, EnabledLibraries};
use atomr_cuda_cufft::{Fft, FftOptions};
use atomr_cuda_testing::compare::{Side, compare, wanted};
use atomr_cuda_testing::{open, random, seeded};
use cudarc::cufft::sys::{self as cufft, cufftHandle, cufftResult, cufftType};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use tokio::runtime::Runtime;

fn main() {
    atomr_cuda_core::worker::init();
    if !atomr_cuda_core::cuda_available() {
        println!("skipped: no CUDA device");
        return;
    }
    // SAFETY: it opens the shared library and closes it again.
    if !unsafe { cufft::is_culib_present() } {
        println!("skipped: no cuFFT library");
        return;
    }
    let runtime = Runtime::new().expect("a tokio runtime");
    let device = runtime.block_on(open(DeviceConfig::new(0).libraries(EnabledLibraries::CUFFT)));
    let raw = Raw::new();
    real(&runtime, &device, &raw, "cufft: r2c f32, 2^26", 1 << 26, 20);
    complex(&runtime, &device, &raw, "cufft: c2c f32, 4096 of 4096", (4096, 4096), 20);
    complex(&runtime, &device, &raw, "cufft: c2c f32, one of 1024, 10000 in a row", (1024, 1), 10_000);
    runtime.block_on(device.shutdown());
}

fn real(runtime: &Runtime, device: &Device, raw: &Raw, name: &str, length: usize, count: usize) {
    if !wanted(name) {
        return;
    }
    let values: Vec<f32> = random(&mut seeded(1), length);
    let x = runtime.block_on(device.upload(&values)).expect("room");
    let y = runtime.block_on(device.alloc::<Complex<f32>>(length / 2 + 1)).expect("room");
    let call = || device.rfft(&x, &y).shape(&[length]);
    let plan = raw.plan(length, cufftType::CUFFT_R2C, 1);
    let (from, to) = (raw.memory(4 * length), raw.memory(8 * (length / 2 + 1)));
    let ours = || {
        (1..count).for_each(|_| drop(call().submit().expect("there is room in the queue")));
        call().wait().expect("a transform");
    };
    let direct = || {
        for _ in 0..count {
            // SAFETY: plan and memory are alive; the buffers have room for the plan's layout.
            check(unsafe { cufft::cufftExecR2C(plan, from as *mut f32, to as *mut cufft::float2) });
        }
        raw.wait();
    };
    let ours = Side::batch("atomr-cuda", count, ours).at_most(1.0 / 0.99);
    compare(name, 10, vec![ours, Side::batch("cufftExecR2C", count, direct)]);
}

fn complex(runtime: &Runtime, device: &Device, raw: &Raw, name: &str, (length, batch): (usize, usize), count: usize) {
    if !wanted(name) {
        return;
    }
    let values: Vec<Complex<f32>> = random(&mut seeded(2), length * batch);
    let x = runtime.block_on(device.upload(&values)).expect("room");
    let y = runtime.block_on(device.alloc::<Complex<f32>>(length * batch)).expect("room");
    let call = || device.fft(&x, &y).shape(&[length]).batch(batch);
    let plan = raw.plan(length, cufftType::CUFFT_C2C, batch);
    let (from, to) = (raw.memory(8 * length * batch), raw.memory(8 * length * batch));
    let ours = || {
        (1..count).for_each(|_| drop(call().submit().expect("there is room in the queue")));
        call().wait().expect("a transform");
    };
    let direct = || {
        for _ in 0..count {
            // SAFETY: plan and memory are alive; the buffers have room for the plan's layout.
            check(unsafe { cufft::cufftExecC2C(plan, from as *mut cufft::float2, to as *mut cufft::float2, -1) });
        }
        raw.wait();
    };
    let bar = if batch == 1 { 1.05 } else { 1.0 / 0.99 };
    compare(
        name,
        10,
        vec![Side::batch("atomr-cuda", count, ours).at_most(bar), Side::batch("cufftExecC2C", count, direct)],
    );
}

/// A context of this process, with a stream. Nothing is released before the end.
struct Raw {
    stream: CUstream,
}

impl Raw {
    fn new() -> Self {
        let (mut device, mut context, mut stream) = (0, null_mut(), null_mut());
        // SAFETY: the places that are written outlive the calls.
        unsafe {
            driver(sys::cuInit(0));
            driver(sys::cuDeviceGet(&mut device, 0));
            driver(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            driver(sys::cuCtxSetCurrent(context));
            driver(sys::cuStreamCreate(&mut stream, 1));
        }
        Raw { stream }
    }

    fn memory(&self, bytes: usize) -> CUdeviceptr {
        let mut memory = 0;
        // SAFETY: the place that is written outlives the call; the memory has as many bytes as are set.
        unsafe {
            driver(sys::cuMemAlloc_v2(&mut memory, bytes));
            driver(sys::cuMemsetD8_v2(memory, 0, bytes));
        }
        memory
    }

    fn plan(&self, length: usize, kind: cufftType, batch: usize) -> cufftHandle {
        let mut plan = 0;
        // SAFETY: the place that is written outlives the call; the stream is alive.
        unsafe {
            check(cufft::cufftPlan1d(&mut plan, length as i32, kind, batch as i32));
            check(cufft::cufftSetStream(plan, self.stream.cast()));
        }
        plan
    }

    fn wait(&self) {
        // SAFETY: the stream is alive.
        driver(unsafe { sys::cuStreamSynchronize(self.stream) });
    }
}

fn driver(status: sys::CUresult) {
    check_driver("driver", status).expect("the driver does it");
}

fn check(status: cufftResult) {
    assert_eq!(status, cufftResult::CUFFT_SUCCESS);
}
