//! Programs on a GPU. On the host, compiling is refused, which is checked too.

use atomr_core::actor::ActorRef;
use atomr_cuda_core::{Device, Fault, GpuError, Request};
use atomr_cuda_nvrtc::{LaunchOptions, Nvrtc, NvrtcMsg, Program, Source, compiler};
use atomr_cuda_testing::{assert_close, on_every_executor, poison, random, seeded};
use rand::Rng;

const SAXPY: &str = r#"
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"#;

const SCALE: &str = r#"
namespace work {
template <typename T, int N> __global__ void scale(const T* x, T* y) {
    y[threadIdx.x] = x[threadIdx.x] * T(N);
}
}
"#;

const STRUCTS: &str = r#"
struct Settings { double a; int b[3]; float c; };
struct Large { float table[1024]; float last; };
extern "C" __global__ void small(char first, Settings settings, double* out) {
    out[0] = first; out[1] = settings.a; out[2] = settings.b[0]; out[3] = settings.b[2]; out[4] = settings.c;
}
extern "C" __global__ void large(const __grid_constant__ Large large, float* out) {
    out[threadIdx.x] = threadIdx.x == 1024 ? large.last : large.table[threadIdx.x];
}
extern "C" __global__ void large_in_turns(const __grid_constant__ Large large, float* out) {
    for (int i = threadIdx.x; i < 1025; i += blockDim.x) out[i] = i == 1024 ? large.last : large.table[i];
}
"#;

const REVERSE: &str = r#"
extern "C" __global__ void reverse(const int* x, int* y, int n) {
    extern __shared__ int tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[n - 1 - i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[i];
}
extern "C" __global__ void with_static(int* y, int n) {
    extern __shared__ int tile[];
    __shared__ int fixed[500];
    fixed[threadIdx.x] = 1;
    tile[n - 1 - threadIdx.x] = 2;
    __syncthreads();
    y[threadIdx.x] = fixed[31 - threadIdx.x] + tile[n - 32 + threadIdx.x];
}
"#;

const RANK: &str = r#"
extern "C" __global__ void rank(unsigned* out) {
    unsigned rank, blocks;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    out[blockIdx.x] = 100 * blocks + rank;
}
"#;

const MEET: &str = r#"
extern "C" __global__ void meet(volatile unsigned* count, unsigned* met) {
    if (threadIdx.x == 0) {
        atomicAdd((unsigned*)count, 1);
        while (*count < gridDim.x) {}
        met[blockIdx.x] = 1;
    }
}
"#;

const ASTRAY: &str = r#"
extern "C" __global__ void astray(float* x, unsigned long long offset) { *(float*)((char*)x + offset) = 1; }
extern "C" __global__ void trap(float* x) { __trap(); }
"#;

const STEP: &str = "extern \"C\" __global__ void step(unsigned* x) { *x = *x * 3 + STEP; }";

/// The sources of these tests are sound, also where nothing can be launched.
#[test]
fn every_source_compiles() {
    if compiler::version().is_err() {
        println!("every_source_compiles: skipped: no NVRTC");
        return;
    }
    let compiler = compiler::Compiler::new(None, 0);
    let scale = Source::new("scale.cu", SCALE).name_expression("work::scale<double, -3>");
    let step = Source::new("step.cu", STEP).option("-DSTEP=1");
    let others = [SAXPY, STRUCTS, REVERSE, RANK, MEET, ASTRAY].map(|code| Source::new("kernels.cu", code));
    for source in others.into_iter().chain([scale, step]) {
        let compiled = compiler.compile(&source, "sm_90a".parse().expect("an architecture")).expect("compiles");
        assert!(!compiled.resources().is_empty());
        for kernel in compiled.resources() {
            println!("{kernel}");
        }
    }
}

/// The program, where this device has any.
async fn compiled(device: &Device, source: &Source) -> Option<Program> {
    match device.compile(source).await {
        Ok(program) => Some(program),
        Err(GpuError::Unsupported { operation, executor, .. }) => {
            assert_eq!((operation.as_str(), executor.as_str()), ("nvrtc.compile", "host"));
            None
        }
        Err(error @ GpuError::LibraryMissing { .. }) => {
            assert!(compiler::version().is_err(), "{error}");
            println!("skipped: no NVRTC");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn has_clusters(program: &Program) -> bool {
    program.architecture().capability() >= (9, 0)
}

#[test]
fn saxpy_of_any_length() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("saxpy.cu", SAXPY)).await else { return };
        let saxpy = program.kernel("saxpy").expect("there");
        assert_eq!(saxpy.info().attributes.parameters, [(0, 4), (8, 8), (16, 8), (24, 4)]);
        assert!(saxpy.info().attributes.registers > 0);
        assert_eq!(saxpy.info().attributes.registers, saxpy.info().resources.registers);
        let mut rng = seeded(7);
        for n in [1, 2, 31, 257, 1000, 100_003, rng.random_range(1..1_000_000)] {
            let (x, y): (Vec<f32>, Vec<f32>) = (random(&mut rng, n), random(&mut rng, n));
            let (a, x_gpu) = (rng.random_range(-2.0f32..2.0), device.upload(&x).await.unwrap());
            let y_gpu = device.upload(&y).await.unwrap();
            let blocks = (n as u32).div_ceil(256);
            let call = device.launch(&saxpy).scalar(a).read(&x_gpu).read_write(&y_gpu).scalar(n as i32);
            call.grid(blocks).block(256).await.unwrap();
            for (i, found) in device.download(&y_gpu).await.unwrap().iter().enumerate() {
                let exact = f64::from(a) * f64::from(x[i]) + f64::from(y[i]);
                let size = (f64::from(a) * f64::from(x[i])).abs() + f64::from(y[i]).abs();
                assert_close::<f32>(f64::from(*found), exact, 2, size, "saxpy");
            }
        }
    });
}

#[test]
fn templates_by_name_expression() {
    on_every_executor(async |device| {
        let source = Source::new("scale.cu", SCALE)
            .name_expression("work::scale<float, 4>")
            .name_expression("work::scale<double, -3>");
        let Some(program) = compiled(device, &source).await else { return };
        let x = device.upload(&[1.5f32, -2.0]).await.unwrap();
        let y = device.upload(&poison::<f32>(2)).await.unwrap();
        let kernel = program.kernel("work::scale<float, 4>").unwrap();
        device.launch(&kernel).read(&x).write(&y).block(2).await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [6.0, -8.0]);
        let x = device.upload(&[1.5f64, -2.0]).await.unwrap();
        let y = device.upload(&poison::<f64>(2)).await.unwrap();
        let kernel = program.kernel("work::scale<double, -3>").unwrap();
        device.launch(&kernel).read(&x).write(&y).block(2).await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [-4.5, 6.0]);
        assert!(matches!(program.kernel("scale"), Err(GpuError::InvalidArgument { .. })));
    });
}

/// As `struct Settings { double a; int b[3]; float c; }`.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Settings {
    a: f64,
    b: [i32; 3],
    c: f32,
}

/// More than the 4 KiB that kernels could once take.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Large {
    table: [f32; 1024],
    last: f32,
}

#[test]
fn structs_small_and_large_as_arguments() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("structs.cu", STRUCTS)).await else { return };
        let out = device.upload(&poison::<f64>(5)).await.unwrap();
        let settings = Settings { a: 0.1, b: [1, 2, -3], c: 0.5 };
        let call = device.launch(&program.kernel("small").unwrap()).scalar(-7i8).plain(settings).write(&out);
        call.await.unwrap();
        assert_eq!(device.download(&out).await.unwrap(), [-7.0, 0.1, 1.0, -3.0, 0.5]);

        let large = Large { table: std::array::from_fn(|i| i as f32), last: -1.0 };
        let out = device.upload(&poison::<f32>(1025)).await.unwrap();
        let kernel = program.kernel("large_in_turns").unwrap();
        device.launch(&kernel).plain(large).write(&out).block(96).await.unwrap();
        let expected: Vec<f32> = (0..1024).map(|i| i as f32).chain([-1.0]).collect();
        assert_eq!(device.download(&out).await.unwrap(), expected);
        let refused = device.launch(&program.kernel("large").unwrap()).plain(large).write(&out).block(1025).submit();
        assert!(matches!(refused, Err(GpuError::InvalidArgument { argument, .. }) if argument == "block"));
    });
}

#[test]
fn dynamic_shared_memory_up_to_all_there_is() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("reverse.cu", REVERSE)).await else { return };
        let reverse = program.kernel("reverse").unwrap();
        let most = reverse.info().max_dynamic_shared;
        assert_eq!(most, program.limits().max_shared, "all of it, with nothing static");
        for n in [1, 1000, most / 4] {
            let x: Vec<i32> = (0..n as i32).collect();
            let (x_gpu, y) = (device.upload(&x).await.unwrap(), device.alloc::<i32>(n as usize).await.unwrap());
            let call = device.launch(&reverse).read(&x_gpu).write(&y).scalar(n as i32);
            call.block(256).dynamic_shared(4 * n).await.unwrap();
            let expected: Vec<i32> = x.into_iter().rev().collect();
            assert_eq!(device.download(&y).await.unwrap(), expected);
        }
        let kernel = program.kernel("with_static").unwrap();
        let beside = kernel.info().max_dynamic_shared;
        assert!(beside <= most - 2000 && beside >= most - 2000 - 1024 - 256, "{beside} of {most}");
        let y = device.alloc::<i32>(32).await.unwrap();
        let call = device.launch(&kernel).write(&y).scalar((beside / 4) as i32).block(32);
        call.clone().dynamic_shared(beside).await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [3; 32]);
        let refused = call.dynamic_shared(beside + 1).submit();
        assert!(matches!(refused, Err(GpuError::InvalidArgument { argument, .. }) if argument == "dynamic_shared"));
    });
}

#[test]
fn clusters() {
    on_every_executor(async |device| {
        let probe = Source::new("probe.cu", "extern \"C\" __global__ void rank(unsigned* out) { out[0] = 1; }");
        let Some(probe) = compiled(device, &probe).await else { return };
        let out = device.upload(&[0u32; 16]).await.unwrap();
        if !has_clusters(&probe) {
            let refused = device.launch(&probe.kernel("rank").unwrap()).read_write(&out).grid(4).cluster(2).submit();
            assert!(matches!(refused, Err(GpuError::InvalidArgument { argument, .. }) if argument == "cluster"));
            println!("clusters: skipped: compute capability {:?}", probe.architecture().capability());
            return;
        }
        let program = compiled(device, &Source::new("rank.cu", RANK)).await.expect("as the probe");
        let rank = program.kernel("rank").unwrap();
        // More than 8 blocks are not portable, but the driver is asked for leave.
        for blocks in [1, 2, 4, 8, 16] {
            device.launch(&rank).write(&out).grid(16).cluster(blocks).await.unwrap();
            let expected: Vec<u32> = (0..16).map(|i| 100 * blocks + i % blocks).collect();
            assert_eq!(device.download(&out).await.unwrap(), expected);
        }
    });
}

#[test]
fn cooperative_launches_and_occupancy() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("meet.cu", MEET)).await else { return };
        let (meet, limits) = (program.kernel("meet").unwrap(), *program.limits());
        let occupancy = device.occupancy(&meet, 256, 0).await.unwrap();
        assert!(occupancy.blocks >= 1 && occupancy.blocks * 256 == occupancy.threads.0);
        assert!(occupancy.threads.0 <= occupancy.threads.1 && occupancy.fraction() <= 1.0);
        assert!(occupancy.best_block >= 32 && occupancy.best_grid >= limits.multiprocessors);
        let one = device.occupancy(&meet, 256, meet.info().max_dynamic_shared).await.unwrap();
        assert_eq!(one.blocks, 1, "one block takes all shared memory");

        let blocks = occupancy.blocks * limits.multiprocessors;
        let count = device.upload(&[0u32]).await.unwrap();
        let met = device.upload(&vec![0u32; blocks as usize]).await.unwrap();
        let call = device.launch(&meet).read_write(&count).write(&met).block(256).cooperative();
        call.clone().grid(blocks).await.unwrap();
        assert_eq!(device.download(&met).await.unwrap(), vec![1; blocks as usize]);
        let error = call.grid(blocks + 1).await.unwrap_err();
        assert!(matches!(error, GpuError::Library { code: 720, .. }), "{error}");
    });
}

#[test]
fn a_wrong_call_is_refused_and_harms_nothing() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("saxpy.cu", SAXPY)).await else { return };
        let saxpy = program.kernel("saxpy").unwrap();
        let (x, y) = (device.upload(&[1.0f32; 4]).await.unwrap(), device.upload(&[1.0f32; 4]).await.unwrap());
        let cases = [
            (device.launch(&saxpy).scalar(1.0f32).read(&x).read_write(&y), "arguments"),
            (device.launch(&saxpy).scalar(1.0f32).read(&x).read_write(&y).scalar(4i32).scalar(4i32), "arguments"),
            (device.launch(&saxpy).scalar(1.0f64).read(&x).read_write(&y).scalar(4i32), "argument 0"),
            (device.launch(&saxpy).scalar(1.0f32).read(&x).read_write(&y).scalar(4u64), "argument 3"),
            (device.launch(&saxpy).scalar(1.0f32).scalar(1.0f32).read_write(&y).scalar(4i32), "argument 1"),
        ];
        for (call, expected) in cases {
            match call.submit() {
                Err(GpuError::InvalidArgument { argument, .. }) => assert_eq!(argument, expected),
                other => panic!("{expected}: {:?}", other.err()),
            }
        }
        assert_eq!(device.generation(), 1);
        device.launch(&saxpy).scalar(2.0f32).read(&x).read_write(&y).scalar(4i32).block(4).await.unwrap();
        assert_eq!(device.download(&y).await.unwrap(), [3.0; 4]);
    });
}

#[test]
fn errors_of_the_compiler_reach_the_caller() {
    on_every_executor(async |device| {
        let sound = Source::new("saxpy.cu", SAXPY);
        if compiled(device, &sound).await.is_none() {
            return;
        }
        let bad = Source::new("bad.cu", "extern \"C\" __global__ void k(int* x) {\n    *x = undefined_name;\n}");
        match device.compile(&bad).await {
            Err(GpuError::Compile { source_name, line, log }) => {
                assert_eq!((source_name.as_str(), line), ("bad.cu", Some(2)));
                assert!(log.contains("undefined_name"), "{log}");
            }
            other => panic!("{other:?}"),
        }
        let long: String = (0..5000).map(|i| format!("int x{i} = missing_{i};\n")).collect();
        let error = device.compile(&Source::new("long.cu", long)).await.unwrap_err();
        assert!(matches!(error, GpuError::Compile { line: Some(1), .. }), "{error}");
        let error = device.compile(&sound.clone().option("--nonsense")).await.unwrap_err();
        assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == "option"), "{error}");
        assert!(compiled(device, &sound).await.expect("goes on").from_cache());
        assert_eq!(device.generation(), 1);
    });
}

#[test]
fn programs_outlive_their_worker() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("saxpy.cu", SAXPY)).await else {
            device.fault(Fault::Kill).await.unwrap_err();
            assert!(compiled(device, &Source::new("saxpy.cu", SAXPY)).await.is_none(), "the same on the next worker");
            return;
        };
        let saxpy = program.kernel("saxpy").unwrap();
        let x = device.upload(&[1.0f32; 100]).await.unwrap();
        let y = device.upload(&[0.0f32; 100]).await.unwrap();
        let launch = || device.launch(&saxpy).scalar(1.0f32).read(&x).read_write(&y).scalar(100i32).block(100);
        for round in 1..=3 {
            let before = device.generation();
            launch().await.unwrap();
            device.fault(Fault::Kill).await.unwrap_err();
            assert_eq!(device.download(&y).await.unwrap(), [(2 * round - 1) as f32; 100]);
            assert!(device.generation() > before);
            // In a worker that has not seen the program; with a stream of launches behind it.
            launch().await.unwrap();
            assert_eq!(device.download(&y).await.unwrap(), [(2 * round) as f32; 100]);
        }
        device.fault(Fault::Kill).await.unwrap_err();
        assert!(device.occupancy(&saxpy, 128, 0).await.unwrap().blocks > 0);
    });
}

#[test]
fn a_kernel_that_goes_astray_costs_its_worker_and_nothing_else() {
    on_every_executor(async |device| {
        let Some(program) = compiled(device, &Source::new("astray.cu", ASTRAY)).await else { return };
        let (astray, trap) = (program.kernel("astray").unwrap(), program.kernel("trap").unwrap());
        let kept = device.upload(&[5.0f32; 8]).await.unwrap();
        let hit = device.upload(&[0.0f32; 8]).await.unwrap();
        for round in 0..2 {
            let call = match round {
                0 => device.launch(&astray).read_write(&hit).scalar(1u64 << 45),
                _ => device.launch(&trap).read_write(&hit),
            };
            let error = call.await.unwrap_err();
            assert!(
                matches!(&error, GpuError::ContextPoisoned { operation, .. } if operation == "nvrtc.launch"),
                "{error:?}"
            );
            let stale = device.launch(&astray).read_write(&hit).scalar(0u64).submit();
            assert!(matches!(stale, Err(GpuError::GpuRefStale { .. })), "{:?}", stale.err());
            device.fill(&hit, 0.0).await.unwrap();
            device.launch(&astray).read_write(&hit).scalar(4u64).await.unwrap();
            assert_eq!(device.download(&hit).await.unwrap(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            assert_eq!(device.download(&kept).await.unwrap(), [5.0; 8]);
        }
    });
}

#[test]
fn launches_keep_their_order_and_more_programs_than_are_kept_loaded() {
    on_every_executor(async |device| {
        let source = |step: usize| Source::new("step.cu", STEP).option(format!("-DSTEP={step}"));
        let mut programs = Vec::new();
        for step in 0..70 {
            let Some(program) = compiled(device, &source(step)).await else { return };
            programs.push(program);
        }
        let x = device.upload(&[1u32]).await.unwrap();
        let mut expected = 1u32;
        let mut last = None;
        for round in 0..3 {
            for step in (0..programs.len()).map(|i| (i * 7 + round) % programs.len()) {
                let kernel = programs[step].kernel("step").unwrap();
                last = Some(device.launch(&kernel).read_write(&x).submit().unwrap());
                expected = expected.wrapping_mul(3).wrapping_add(step as u32);
            }
        }
        last.expect("launches").await.unwrap();
        assert_eq!(device.download(&x).await.unwrap(), [expected]);
    });
}

#[test]
fn messages_to_the_actor() {
    on_every_executor(async |device| {
        let actor = device.children().extra::<ActorRef<NvrtcMsg>>().expect("the library's actor");
        let (request, reply) = Request::new(device.compile(&Source::new("saxpy.cu", SAXPY)));
        actor.tell(NvrtcMsg::Compile(request));
        let program = match reply.await.expect("answered") {
            Ok(program) => program,
            Err(error) => {
                assert!(matches!(error, GpuError::Unsupported { .. } | GpuError::LibraryMissing { .. }), "{error}");
                return;
            }
        };
        let (x, y) = (device.upload(&[1.0f32; 4]).await.unwrap(), device.upload(&[1.0f32; 4]).await.unwrap());
        let kernel = program.kernel("saxpy").unwrap();
        let call = device.launch(&kernel).scalar(2.0f32).read(&x).read_write(&y).scalar(4i32).block(4);
        let (request, reply) = Request::new(call);
        actor.tell(NvrtcMsg::Launch(request));
        reply.await.expect("answered").expect("launched");
        assert_eq!(device.download(&y).await.unwrap(), [3.0; 4]);
        let (request, reply) = Request::new(device.occupancy(&kernel, 64, 0));
        actor.tell(NvrtcMsg::Occupancy(request));
        assert!(reply.await.expect("answered").expect("known").blocks > 0);
    });
}
