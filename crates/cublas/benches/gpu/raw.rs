//! The other side: the driver and cuBLAS, called as a program of its own would. It is used by one
//! thread, the one that made it. Whatever fails ends the benchmark.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use atomr_cuda_core::executor::cuda::check_driver;
use cudarc::cublas::sys::{self as cublas, cublasComputeType_t, cublasHandle_t, cublasStatus_t, cudaDataType};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

/// What the device's own handles have: both sides choose their kernels alike.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Whether cuBLAS loads.
pub fn cublas_present() -> bool {
    // SAFETY: it opens the shared library and closes it again.
    unsafe { cublas::is_culib_present() }
}

/// The device's primary context, a stream, a cuBLAS handle, and a word that the GPU counts up.
pub struct Raw {
    pub stream: CUstream,
    blas: cublasHandle_t,
    counter: Pinned,
    /// The counter's address on the device.
    counter_on_device: CUdeviceptr,
    last: Cell<u64>,
    _workspace: Memory,
}

/// A square product, `C = A B`, as `cublasGemmEx` takes it.
#[derive(Clone, Copy)]
pub struct Product {
    pub n: i64,
    pub kind: cudaDataType,
    pub compute: cublasComputeType_t,
}

impl Raw {
    pub fn new() -> Self {
        let mut device = 0;
        // SAFETY: all places that are written outlive the calls; the context is never released.
        unsafe {
            driver(sys::cuInit(0));
            driver(sys::cuDeviceGet(&mut device, 0));
            let mut context = ptr::null_mut();
            driver(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            driver(sys::cuCtxSetCurrent(context));
            let mut pool = ptr::null_mut();
            driver(sys::cuDeviceGetDefaultMemPool(&mut pool, device));
            // Memory stays with the pool, or every allocation would go to the operating system.
            let mut threshold = u64::MAX;
            let threshold: *mut u64 = &mut threshold;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            driver(sys::cuMemPoolSetAttribute(pool, attribute, threshold.cast()));
        }
        let (mut stream, mut blas) = (ptr::null_mut(), ptr::null_mut());
        let workspace = Memory::new(WORKSPACE_BYTES);
        // SAFETY: the places that are written outlive the calls; the handle gets a live stream and
        // memory of the size that is named.
        unsafe {
            driver(sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32));
            library(cublas::cublasCreate_v2(&mut blas));
            library(cublas::cublasSetStream_v2(blas, stream.cast()));
            library(cublas::cublasSetWorkspace_v2(blas, workspace.0 as *mut c_void, WORKSPACE_BYTES));
        }
        let counter = Pinned::new(4096);
        let mut counter_on_device = 0;
        // SAFETY: the counter is pinned memory, and the place that is written outlives the call.
        driver(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut counter_on_device, counter.ptr, 0) });
        Raw { stream, blas, counter, counter_on_device, last: Cell::new(0), _workspace: workspace }
    }

    /// Waits for everything enqueued so far: the GPU writes a word to pinned memory, and this spins.
    pub fn spin(&self) {
        let value = self.last.get() + 1;
        self.last.set(value);
        // SAFETY: the address is that of an aligned word of pinned memory, which lives as long as `self`.
        driver(unsafe { sys::cuStreamWriteValue64_v2(self.stream, self.counter_on_device, value, 0) });
        // SAFETY: as above; the GPU and this thread are the only ones that touch it.
        let counter = unsafe { &*self.counter.ptr.cast::<AtomicU64>() };
        while counter.load(Ordering::Acquire) < value {
            std::hint::spin_loop();
        }
    }

    /// The same by asking the driver again and again.
    pub fn spin_query(&self) {
        loop {
            // SAFETY: the stream is live.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                CUresult::CUDA_ERROR_NOT_READY => std::hint::spin_loop(),
                result => return driver(result),
            }
        }
    }

    /// Row-major `C = A B` of `n` x `n` matrices (`cublasSgemm`), by exchanging the operands.
    pub fn sgemm(&self, n: i64, a: &Memory, b: &Memory, c: &Memory) {
        let none = cublas::cublasOperation_t::CUBLAS_OP_N;
        let (alpha, beta) = (1.0f32, 0.0f32);
        let (a, b, c) = (a.0 as *const f32, b.0 as *const f32, c.0 as *mut f32);
        // SAFETY: the handle is live and takes scalars from the host; each buffer has room for its matrix.
        library(unsafe { cublas::cublasSgemm_v2_64(self.blas, none, none, n, n, n, &alpha, b, n, a, n, &beta, c, n) });
    }

    /// `C = A A`, with the call that the device makes.
    pub fn gemm(&self, product: Product, a: &Memory, c: &Memory) {
        let none = cublas::cublasOperation_t::CUBLAS_OP_N;
        let Product { n, kind, compute } = product;
        let (alpha, beta) = (1.0f32, 0.0f32);
        let (alpha, beta): (*const f32, *const f32) = (&alpha, &beta);
        let (a, c) = (a.0 as *const c_void, c.0 as *mut c_void);
        let algorithm = cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        // SAFETY: the handle is live and takes scalars from the host, in `f32` for every type in use
        // here; each buffer has room for its matrix.
        library(unsafe {
            cublas::cublasGemmEx_64(
                self.blas,
                none,
                none,
                n,
                n,
                n,
                alpha.cast(),
                a,
                kind,
                n,
                a,
                kind,
                n,
                beta.cast(),
                c,
                kind,
                n,
                compute,
                algorithm,
            )
        });
    }

    /// Sets `count` words to a value whose bytes differ, so that no narrower fill does.
    pub fn fill(&self, memory: &Memory, count: usize) {
        // SAFETY: the stream is live and the memory holds `count` words.
        driver(unsafe { sys::cuMemsetD32Async(memory.0, 1.0f32.to_bits(), count, self.stream) });
    }

    /// Allocates and frees in stream order.
    pub fn allocate_and_free(&self, bytes: usize) {
        let mut memory = 0;
        // SAFETY: the place that is written outlives the call, and what was allocated is freed once.
        unsafe {
            driver(sys::cuMemAllocAsync(&mut memory, bytes, self.stream));
            driver(sys::cuMemFreeAsync(memory, self.stream));
        }
    }

    pub fn to_device(&self, from: &Pinned, to: &Memory) {
        // SAFETY: both have the pinned memory's size, and live until the stream was waited for.
        driver(unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.ptr, from.bytes, self.stream) });
    }

    pub fn to_host(&self, from: &Memory, to: &Pinned) {
        // SAFETY: both have the pinned memory's size, and live until the stream was waited for.
        driver(unsafe { sys::cuMemcpyDtoHAsync_v2(to.ptr, from.0, to.bytes, self.stream) });
    }
}

/// Device memory of `cuMemAlloc`.
pub struct Memory(CUdeviceptr);

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let mut memory = 0;
        // SAFETY: the place that is written outlives the call; a context is current.
        driver(unsafe { sys::cuMemAlloc_v2(&mut memory, bytes) });
        Memory(memory)
    }

    /// With a copy of `values`.
    pub fn with<T: Copy>(values: &[T]) -> Self {
        let memory = Self::new(size_of_val(values));
        memory.write(values);
        memory
    }

    /// Copies plain host memory in (`cuMemcpyHtoD`), and waits for it.
    pub fn write<T: Copy>(&self, values: &[T]) {
        // SAFETY: callers give at most as many bytes as the memory has.
        driver(unsafe { sys::cuMemcpyHtoD_v2(self.0, values.as_ptr().cast(), size_of_val(values)) });
    }

    /// Copies to plain host memory (`cuMemcpyDtoH`), and waits for it.
    pub fn read<T: Copy>(&self, values: &mut [T]) {
        // SAFETY: callers ask for at most as many bytes as the memory has; `T` is a plain number.
        driver(unsafe { sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), self.0, size_of_val(values)) });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`, and freeing waits for the work that uses it.
        driver(unsafe { sys::cuMemFree_v2(self.0) });
    }
}

/// Host memory of `cuMemHostAlloc`.
pub struct Pinned {
    ptr: *mut c_void,
    bytes: usize,
}

impl Pinned {
    /// All zero.
    pub fn new(bytes: usize) -> Self {
        let mut ptr = ptr::null_mut();
        // SAFETY: the place that is written outlives the call; a context is current.
        driver(unsafe { sys::cuMemHostAlloc(&mut ptr, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) });
        // SAFETY: the driver has given this many bytes.
        unsafe { ptr.cast::<u8>().write_bytes(0, bytes) };
        Pinned { ptr, bytes }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`; whoever copied has waited.
        driver(unsafe { sys::cuMemFreeHost(self.ptr) });
    }
}

fn driver(result: CUresult) {
    // The text that goes with a success is not made: this is called in timed code.
    if result != CUresult::CUDA_SUCCESS {
        check_driver("a driver call of the benchmark", result).expect("the driver");
    }
}

fn library(status: cublasStatus_t) {
    assert_eq!(status, cublasStatus_t::CUBLAS_STATUS_SUCCESS);
}
