//! What is refused before anything is queued, against a program that is made up; no GPU is needed.

use std::time::Duration;

use atomr_core::actor::ActorRef;
use atomr_cuda_core::{Access, Argument, Device, DeviceConfig, EnabledLibraries, Fault, GpuError, GpuRef, Request};
use atomr_cuda_testing::open;

use super::program::{Built, pack};
use super::*;
use crate::NvrtcMsg;
use crate::compiler::{KernelAttributes, Resources};

async fn host() -> Device {
    open(DeviceConfig::host(0).libraries(EnabledLibraries::NVRTC)).await
}

/// A program with the kernel `k(float*, const float*, float, struct of 12 bytes)`.
fn program(device: &Device, clusters: bool) -> Program {
    let parameters = vec![(0, 8), (8, 8), (16, 4), (20, 12)];
    let attributes = KernelAttributes { max_threads: 512, static_shared: 256, parameters, ..Default::default() };
    let kernel = |name: &str| KernelInfo {
        name: name.into(),
        attributes: attributes.clone(),
        resources: Resources::default(),
        max_dynamic_shared: 100_000,
    };
    let built = Built {
        architecture: "sm_90a".parse().expect("an architecture"),
        lowered: vec![("k<float>".into(), "_Z1k".into())],
        log: "a remark".into(),
        took: Duration::from_millis(5),
        from_cache: true,
        kernels: vec![kernel("_Z1k"), kernel("other")],
        limits: DeviceLimits {
            max_grid: [i32::MAX as u32, 65_535, 65_535],
            max_block: [1024, 1024, 64],
            max_threads: 1024,
            clusters,
            cooperative: false,
            ..Default::default()
        },
    };
    Program::unpack(device, &pack(&built, b"\x7fELF code").expect("packs")).expect("unpacks")
}

fn sound(device: &Device, kernel: &KernelFn, out: &GpuRef<f32>, x: &GpuRef<f32>) -> Call<Launch> {
    device.launch(kernel).read_write(out).read(x).scalar(1.0f32).plain([1i32, 2, 3]).grid(4).block(128)
}

#[track_caller]
fn assert_refused(call: Call<Launch>, expected: &str) {
    match call.submit() {
        Err(GpuError::InvalidArgument { argument, .. }) => assert_eq!(argument, expected),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_keep_what_the_executor_said() {
    let device = host().await;
    let program = program(&device, true);
    assert_eq!((program.log(), program.took(), program.from_cache()), ("a remark", Duration::from_millis(5), true));
    assert_eq!((program.architecture().to_string().as_str(), program.image_bytes()), ("sm_90a", 9));
    assert_eq!(program.kernel("k<float>").expect("by expression").info().name, "_Z1k");
    assert_eq!(program.kernel("other").expect("by name").index(), 1);
    let error = program.kernel("nothing").expect_err("no such kernel");
    assert!(error.to_string().contains("k<float>, _Z1k, other"), "{error}");
    assert_eq!(program.key(), key_of(b"\x7fELF code"));
    for damaged in [&b""[..], b"\xff\xff\xff"] {
        assert!(matches!(Program::unpack(&device, damaged), Err(GpuError::Protocol { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_and_extents_are_checked_first() {
    let device = host().await;
    let kernel = program(&device, true).kernel("k<float>").expect("there");
    let (out, x) = (device.alloc::<f32>(16).await.expect("room"), device.alloc::<f32>(16).await.expect("room"));
    let call = || sound(&device, &kernel, &out, &x);

    assert_refused(device.launch(&kernel), "arguments");
    assert_refused(call().scalar(1i32), "arguments");
    assert_refused(device.launch(&kernel).read(&x).read(&x).scalar(1.0f64).plain([0i32; 3]), "argument 2");
    assert_refused(device.launch(&kernel).scalar(1.0f32).read(&x).scalar(1.0f32).plain([0i32; 3]), "argument 0");
    assert_refused(device.launch(&kernel).read(&x).read(&x).read(&x).plain([0i32; 3]), "argument 2");
    let many = (0..100).fold(device.launch(&kernel), |call, _| call.read(&x));
    assert_refused(many, "arguments");

    assert_refused(call().grid(0), "grid");
    assert_refused(call().grid((1, 65_536)), "grid");
    assert_refused(call().grid(u32::MAX), "grid");
    assert_refused(call().block((1, 1, 65)), "block");
    assert_refused(call().block(513), "block");
    assert_refused(call().block((32, 17)), "block");
    assert_refused(call().block((1024, 1024, 64)), "block");
    assert_refused(call().dynamic_shared(100_001), "dynamic_shared");
    assert_refused(call().cooperative(), "cooperative");
    for cluster in [3, 0, 5] {
        assert_refused(call().cluster(cluster), "cluster");
    }
    assert_refused(call().grid(64).cluster(32), "cluster");
    let older = program(&device, false).kernel("other").expect("there");
    assert_refused(sound(&device, &older, &out, &x).cluster(2), "cluster");

    let error = device.launch(&kernel).read_write(&x).read(&x).scalar(1.0f32).plain([0i32; 3]).submit().err();
    assert!(matches!(error, Some(GpuError::Aliased { .. })), "{error:?}");
    let elsewhere = host().await;
    let error = sound(&elsewhere, &kernel, &out, &x).submit().err();
    assert!(matches!(error, Some(GpuError::WrongDevice { .. })), "{error:?}");
    for query in [device.occupancy(&kernel, 0, 0), device.occupancy(&kernel, 513, 0)] {
        let error = query.submit().err();
        assert!(
            matches!(&error, Some(GpuError::InvalidArgument { argument, .. }) if argument == "threads"),
            "{error:?}"
        );
    }
    assert!(device.occupancy(&kernel, 1, 100_001).submit().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_device_says_that_it_cannot() {
    let device = host().await;
    let source = Source::new("a.cu", "extern \"C\" __global__ void k() {}");
    let unsupported = |error: GpuError, name: &str| {
        assert!(
            matches!(&error, GpuError::Unsupported { operation, executor, .. }
            if operation == name && executor == "host"),
            "{error:?}"
        );
    };
    let kernel = program(&device, true).kernel("other").expect("there");
    let (out, x) = (device.upload(&[1.0f32]).await.expect("room"), device.upload(&[1.0f32]).await.expect("room"));
    let (request, reply) = Request::new(device.compile(&source));
    let actor = device.children().extra::<ActorRef<NvrtcMsg>>().expect("the library's actor");
    actor.tell(NvrtcMsg::Compile(request));
    unsupported(reply.await.expect("answered").expect_err("no GPU"), "nvrtc.compile");
    for _ in 0..2 {
        unsupported(device.compile(&source).await.expect_err("no GPU"), "nvrtc.compile");
        unsupported(sound(&device, &kernel, &out, &x).await.expect_err("no GPU"), "nvrtc.launch");
        unsupported(device.occupancy(&kernel, 32, 0).await.expect_err("no GPU"), "nvrtc.occupancy");
        device.fill(&out, 1.0).await.expect("overwritten whole");
        device.fault(Fault::Kill).await.expect_err("the worker is gone");
        device.ready().await.expect("the next one is up");
        device.upload(&[0u8]).await.expect("and works");
    }
    let error = device.compile(&Source::new("a.cu", "")).submit().err();
    assert!(matches!(error, Some(GpuError::InvalidArgument { .. })), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_leaves_no_files_behind() {
    let device = host().await;
    let call = device.compile(&Source::new("a.cu", "x"));
    let folder = call.operation.file.parent().expect("a folder").to_path_buf();
    assert!(folder.is_dir());
    call.await.expect_err("no GPU");
    assert!(!folder.exists());
}

#[test]
fn access_and_order_of_arguments_follow_the_launch() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let device = host().await;
        let kernel = program(&device, true).kernel("other").expect("there");
        let (a, b, c) = (
            device.alloc::<f32>(1).await.expect("room"),
            device.alloc::<f32>(1).await.expect("room"),
            device.alloc::<f32>(1).await.expect("room"),
        );
        let call = device.launch(&kernel).write(&a).scalar(1u64).read(&b).buffer(&c, Access::ReadWrite);
        let expected = [
            Argument::read("program"),
            Argument::write("argument 0"),
            Argument::read("argument 2"),
            Argument::read_write("argument 3"),
        ];
        assert_eq!(call.operation.arguments().as_slice(), expected);
        assert_eq!(call.buffers().len(), 4);
        let sent = postcard::to_allocvec(&call.operation).expect("plain data");
        let received: Launch = postcard::from_bytes(&sent).expect("plain data");
        assert_eq!(received.values, call.operation.values);
        assert_eq!((received.program, received.kernel), (kernel.program().key(), 1));
        // On the other side of the ring nothing is left to check it against.
        assert!(received.check(&[]).is_err());
    });
}
