//! Launches through the device, beside the driver called directly in this process.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use atomr_cuda_core::executor::cuda::check_driver;
use atomr_cuda_core::{Call, Device, DeviceConfig, EnabledLibraries, GpuRef};
use atomr_cuda_nvrtc::compiler::{self, Architecture};
use atomr_cuda_nvrtc::{KernelFn, Launch, LaunchOptions, Nvrtc, Source};
use atomr_cuda_testing::compare::{Side, compare};
use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUstream};

const PIPELINED: usize = 10_000;
const WAITED_FOR: usize = 200;
const N: usize = 1024;

const CODE: &str = r#"
extern "C" __global__ void empty() {}
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#;

fn main() {
    if !atomr_cuda_core::cuda_available() {
        println!("skipped: no CUDA device");
        return;
    }
    if let Err(error) = compiler::version() {
        println!("skipped: no NVRTC ({error})");
        return;
    }
    let raw = Raw::new();
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    let config = DeviceConfig::new(0).libraries(EnabledLibraries::NVRTC);
    let device = runtime.block_on(atomr_cuda_testing::open(config));
    let ours = runtime.block_on(Ours::new(&device));

    let sides = vec![
        Side::batch("atomr-cuda", PIPELINED, || pipeline(PIPELINED, || ours.empty())),
        Side::batch("cuLaunchKernel", PIPELINED, || {
            (0..PIPELINED).for_each(|_| raw.empty());
            raw.wait();
        }),
    ];
    compare("empty kernel, 10000 in a row, the last waited for", 20, sides);

    let sides = vec![
        Side::batch("atomr-cuda", PIPELINED, || pipeline(PIPELINED, || ours.saxpy())),
        Side::batch("cuLaunchKernel", PIPELINED, || {
            (0..PIPELINED).for_each(|_| raw.saxpy());
            raw.wait();
        }),
    ];
    compare("saxpy of 1024, 10000 in a row, the last waited for", 20, sides);

    let sides = vec![
        Side::batch("atomr-cuda", WAITED_FOR, || (0..WAITED_FOR).for_each(|_| ours.empty().wait().expect("launched"))),
        Side::batch("cuLaunchKernel", WAITED_FOR, || {
            (0..WAITED_FOR).for_each(|_| {
                raw.empty();
                raw.wait();
            });
        }),
    ];
    compare("empty kernel, each waited for", 50, sides);
    runtime.block_on(device.shutdown());
}

/// Submits `count` launches and waits for the last.
fn pipeline(count: usize, launch: impl Fn() -> Call<Launch>) {
    for _ in 1..count {
        drop(launch().submit().expect("queued"));
    }
    launch().wait().expect("launched");
}

struct Ours {
    device: Device,
    empty: KernelFn,
    saxpy: KernelFn,
    x: GpuRef<f32>,
    y: GpuRef<f32>,
}

impl Ours {
    async fn new(device: &Device) -> Self {
        let program = device.compile(&Source::new("bench.cu", CODE)).await.expect("compiles");
        Ours {
            device: device.clone(),
            empty: program.kernel("empty").expect("there"),
            saxpy: program.kernel("saxpy").expect("there"),
            x: device.upload(&[0.0f32; N]).await.expect("room"),
            y: device.upload(&[0.0f32; N]).await.expect("room"),
        }
    }

    fn empty(&self) -> Call<Launch> {
        self.device.launch(&self.empty)
    }

    fn saxpy(&self) -> Call<Launch> {
        let call = self.device.launch(&self.saxpy).scalar(2.0f32).read(&self.x).read_write(&self.y);
        call.scalar(N as i32).grid(4).block(256)
    }
}

/// The same with the driver alone, in the primary context of this process.
struct Raw {
    stream: CUstream,
    empty: CUfunction,
    saxpy: CUfunction,
    x: CUdeviceptr,
    y: CUdeviceptr,
}

impl Raw {
    fn new() -> Self {
        let (mut device, mut context, mut stream, mut module) = (0, null_mut(), null_mut(), null_mut());
        let (mut major, mut minor) = (0, 0);
        use sys::CUdevice_attribute as Attribute;
        // SAFETY: every place that is written outlives its call.
        unsafe {
            ok(sys::cuInit(0));
            ok(sys::cuDeviceGet(&mut device, 0));
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            ok(sys::cuCtxSetCurrent(context));
            ok(sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32));
            let capability = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
            ok(sys::cuDeviceGetAttribute(&mut major, capability, device));
            let capability = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
            ok(sys::cuDeviceGetAttribute(&mut minor, capability, device));
        }
        let architecture = Architecture::of(major, minor).expect("a capability");
        let compiled = compiler::compile(&Source::new("bench.cu", CODE), architecture).expect("compiles");
        // SAFETY: the machine code outlives the call, as does the place that is written.
        ok(unsafe { sys::cuModuleLoadData(&mut module, compiled.cubin().as_ptr().cast()) });
        let function = |name: &str| {
            let (name, mut function) = (CString::new(name).expect("no NUL"), null_mut());
            // SAFETY: the module is alive, the name terminated, the place outlives the call.
            ok(unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) });
            function
        };
        let zeros = || {
            let mut ptr = 0;
            // SAFETY: the place outlives the call, and the memory has as many bytes as are set.
            unsafe {
                ok(sys::cuMemAlloc_v2(&mut ptr, 4 * N));
                ok(sys::cuMemsetD8_v2(ptr, 0, 4 * N));
            }
            ptr
        };
        Raw { stream, empty: function("empty"), saxpy: function("saxpy"), x: zeros(), y: zeros() }
    }

    fn empty(&self) {
        // SAFETY: the kernel has no parameters.
        ok(unsafe { sys::cuLaunchKernel(self.empty, 1, 1, 1, 1, 1, 1, 0, self.stream, null_mut(), null_mut()) });
    }

    fn saxpy(&self) {
        let (mut a, mut x, mut y, mut n) = (2.0f32, self.x, self.y, N as i32);
        let mut arguments: [*mut c_void; 4] =
            [(&raw mut a).cast(), (&raw mut x).cast(), (&raw mut y).cast(), (&raw mut n).cast()];
        let arguments = arguments.as_mut_ptr();
        // SAFETY: these are the kernel's four parameters; both vectors have `N` elements.
        ok(unsafe { sys::cuLaunchKernel(self.saxpy, 4, 1, 1, 256, 1, 1, 0, self.stream, arguments, null_mut()) });
    }

    fn wait(&self) {
        // SAFETY: the stream is alive.
        ok(unsafe { sys::cuStreamSynchronize(self.stream) });
    }
}

fn ok(status: sys::CUresult) {
    check_driver("driver", status).expect("the driver does it");
}
