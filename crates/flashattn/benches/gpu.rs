//! Attention on a CUDA device: how much of the GPU it uses, and what the way through a device costs
//! beside a launch of the same kernel from this process. Prints one JSON line a benchmark.

use std::ffi::c_void;
use std::ptr::null_mut;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{Call, Device, DeviceConfig, EnabledLibraries, GpuRef, bf16};
use atomr_cuda_flashattn::{Attention, AttentionCall, AttentionOptions, Decode, DecodeOptions, Kernels, MaskOptions};
use atomr_cuda_nvrtc::compiler::{self, Architecture, Kernel, LaunchConfig, Module, Source};
use atomr_cuda_testing::compare::{Side, compare, compare_rates, wanted};
use atomr_cuda_testing::{open, random, seeded};
use cudarc::driver::sys::{self, CUdeviceptr, CUstream};
use tokio::runtime::Runtime;

const PIPELINED: usize = 10_000;
const BATCH: usize = 20;

fn main() {
    atomr_cuda_core::worker::init();
    if !atomr_cuda_core::cuda_available() {
        println!("skipped: no CUDA device");
        return;
    }
    if let Err(error) = compiler::version() {
        println!("skipped: no NVRTC ({error})");
        return;
    }
    let runtime = Runtime::new().expect("a tokio runtime");
    let device = runtime.block_on(open(DeviceConfig::new(0).libraries(EnabledLibraries::FLASHATTN)));
    let bench = Bench { runtime, device };
    for forward in [
        Forward { batch: 2, seq: 8192, head_dim: 128, causal: false, kernels: Kernels::Auto, bar: 600.0 },
        Forward { batch: 2, seq: 8192, head_dim: 128, causal: true, kernels: Kernels::Auto, bar: 540.0 },
        Forward { batch: 8, seq: 2048, head_dim: 64, causal: true, kernels: Kernels::Auto, bar: 320.0 },
        Forward { batch: 2, seq: 8192, head_dim: 128, causal: false, kernels: Kernels::Mma, bar: 343.0 },
        Forward { batch: 2, seq: 8192, head_dim: 128, causal: true, kernels: Kernels::Mma, bar: 312.0 },
    ] {
        bench.forward(&forward);
    }
    bench.decode();
    bench.small();
    let Bench { runtime, device } = &bench;
    runtime.block_on(device.shutdown());
}

struct Bench {
    runtime: Runtime,
    device: Device,
}

struct Forward {
    batch: usize,
    seq: usize,
    head_dim: usize,
    causal: bool,
    kernels: Kernels,
    /// TFLOP/s that are asked for.
    bar: f64,
}

const HEADS: usize = 16;

impl Bench {
    fn upload(&self, len: usize, seed: u64) -> GpuRef<bf16> {
        self.runtime.block_on(self.device.upload(&random::<bf16>(&mut seeded(seed), len))).expect("room")
    }

    fn forward(&self, of: &Forward) {
        let causal = if of.causal { ", causal" } else { "" };
        let Forward { batch, seq, head_dim, kernels, .. } = *of;
        let name = format!("attention B{batch} H{HEADS} S{seq} D{head_dim}{causal}, bf16, {kernels:?} kernels");
        if !wanted(&name) {
            return;
        }
        let len = batch * seq * HEADS * head_dim;
        let [q, k, v, o] = [1, 2, 3, 4].map(|seed| self.upload(len, seed));
        let call = || {
            let call = self.device.attention(&q, &k, &v, &o).shape(batch, seq, seq, head_dim).heads(HEADS, HEADS);
            let call = call.kernels(kernels);
            if of.causal { call.causal() } else { call }
        };
        // Two products of 2 * S * S * D each, half of them masked out where causal.
        let operations = 4.0 * (batch * HEADS * seq * seq * head_dim) as f64 * if of.causal { 0.5 } else { 1.0 };
        let side = Side::batch("atomr-cuda", BATCH, || pipeline(BATCH, call));
        let side = side.at_most_us(operations / of.bar / 1e6);
        compare_rates(&name, 10, operations / 1e12, "TFLOP/s", vec![side]);
    }

    /// 16 sequences of 32k cached tokens, 8 query heads a key head, beside a copy of as many bytes.
    fn decode(&self) {
        let name = "decode: batch 16, 32k tokens, GQA 64:8, D128, pages of 64, bf16";
        if !wanted(name) {
            return;
        }
        let (batch, tokens, heads_q, heads_kv, d, page) = (16, 32_768, 64, 8, 128, 64);
        let pages = batch * tokens / page;
        let len = pages * page * heads_kv * d;
        let (k, v) = (self.upload(len, 5), self.upload(len, 6));
        let (q, o) = (self.upload(batch * heads_q * d, 7), self.upload(batch * heads_q * d, 8));
        // Pages of a sequence far from each other.
        let max_pages = tokens / page;
        let table: Vec<i32> = (0..pages).map(|at| (at % max_pages * batch + at / max_pages) as i32).collect();
        let table = self.runtime.block_on(self.device.upload(&table)).expect("room");
        let lens = self.runtime.block_on(self.device.upload(&vec![tokens as i32; batch])).expect("room");
        let call = || -> Call<Decode> {
            let call = self.device.decode_attention(&q, &k, &v, &o).shape(batch, 1, d).heads(heads_q, heads_kv);
            call.cache(pages, page).pages(&table, &lens, max_pages)
        };
        let copy = || self.device.copy(&k, &v);
        // A copy of n bytes moves 2 n: reading k and v, or reading k and writing v.
        let bytes = 2.0 * (len * size_of::<bf16>()) as f64;
        let sides = vec![
            Side::batch("atomr-cuda", BATCH, || pipeline(BATCH, call)).at_most(1.0 / 0.85),
            Side::batch("atomr-cuda, unreported", BATCH, || pipeline(BATCH, || call().unreported())),
            Side::batch("device-to-device copy", BATCH, || pipeline(BATCH, copy)),
        ];
        compare_rates(name, 10, bytes / 1e12, "TB/s", sides);
    }

    fn small(&self) {
        let name = "attention B1 H2 S64 D64, bf16, mma kernels, 10000 in a row";
        if !wanted(name) {
            return;
        }
        let len = 64 * 2 * 64;
        let [q, k, v, o] = [1, 2, 3, 4].map(|seed| self.upload(len, seed));
        let call = || -> Call<Attention> {
            self.device.attention(&q, &k, &v, &o).shape(1, 64, 64, 64).heads(2, 2).kernels(Kernels::Mma)
        };
        let raw = Raw::new(2 * len as u64);
        let sides = vec![
            Side::batch("atomr-cuda", PIPELINED, || pipeline(PIPELINED, call)).at_most(1.05),
            Side::batch("the same kernel by cuLaunchKernelEx", PIPELINED, || {
                (0..PIPELINED).for_each(|_| raw.launch());
                raw.wait();
            }),
        ];
        compare(name, 20, sides);
    }
}

/// Submits `count` calls and waits for the last.
fn pipeline<O: atomr_cuda_core::Operation>(count: usize, call: impl Fn() -> Call<O>) {
    for _ in 1..count {
        drop(call().submit().expect("there is room in the queue"));
    }
    call().wait().expect("attention");
}

/// `AttentionParams` of `forward_mma.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [CUdeviceptr; 7],
    strides: [[i64; 3]; 4],
    sizes: [i32; 8],
    scale: f32,
    softcap: f32,
    heads_per_section: i32,
}

const SHARED_BYTES: u32 = 2 * 64 * (128 + 4 * 64) + 32;

/// The same kernel, launched from a context of this process.
struct Raw {
    kernel: Kernel,
    stream: CUstream,
    params: Params,
}

impl Raw {
    fn new(bytes: u64) -> Self {
        let (mut device, mut context, mut stream, mut memory) = (0, null_mut(), null_mut(), 0);
        // SAFETY: the places that are written outlive the calls; context, stream and memory are never
        // released.
        unsafe {
            driver("cuInit", sys::cuInit(0));
            driver("cuDeviceGet", sys::cuDeviceGet(&mut device, 0));
            driver("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device));
            driver("cuCtxSetCurrent", sys::cuCtxSetCurrent(context));
            driver("cuStreamCreate", sys::cuStreamCreate(&mut stream, 1));
            driver("cuMemAlloc", sys::cuMemAlloc_v2(&mut memory, 4 * bytes as usize));
        }
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the place that is written outlives the call.
            driver("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) });
            value
        };
        use sys::CUdevice_attribute as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let architecture = Architecture::of(major, minor).expect("an architecture").base();
        let source = Source::new("forward_mma.cu", include_str!("../src/kernels/forward_mma.cu"));
        let source = ["HEAD_DIM=64", "BLOCK_M=128", "BLOCK_N=64", "STAGES=2", "WARPS=4"]
            .iter()
            .fold(source.option("--std=c++17").option("-default-device"), |source, define| {
                source.option(format!("-DATTN_{define}"))
            });
        let compiled = compiler::compile(&source, architecture).expect("compiles");
        let kernel = Module::load(&compiled).and_then(|module| module.kernel("attention_forward_mma")).expect("loads");
        kernel.set_max_dynamic_shared(SHARED_BYTES).expect("the device has as much");
        let strides = [[64 * 128, 128, 64]; 4];
        let params = Params {
            pointers: [memory, memory + bytes, memory + 2 * bytes, memory + 3 * bytes, 0, 0, 0],
            strides,
            sizes: [1, 2, 2, 64, 64, 0, -1, -1],
            scale: 0.125,
            softcap: 0.0,
            heads_per_section: 1,
        };
        Raw { kernel, stream, params }
    }

    fn launch(&self) {
        let config = LaunchConfig {
            grid: [2, 1, 1],
            block: [128, 1, 1],
            dynamic_shared: SHARED_BYTES,
            ..LaunchConfig::default()
        };
        let mut params = self.params;
        let mut arguments = [std::ptr::from_mut(&mut params).cast::<c_void>()];
        // SAFETY: the kernel's one parameter, as it declares it; the buffers have room for its sizes.
        unsafe { self.kernel.launch(&config, self.stream, &mut arguments) }.expect("launches");
    }

    fn wait(&self) {
        // SAFETY: the stream is alive.
        driver("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) });
    }
}

fn driver(function: &str, status: sys::CUresult) {
    check_driver(function, status).expect("the driver answers");
}
