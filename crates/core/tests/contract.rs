//! What a device promises while nothing goes wrong, and what it refuses.

mod common;

use atomr_cuda_core::{
    Device, DeviceConfig, DeviceMsg, DevicePhase, EnabledLibraries, ExecutorKind, GpuError, Isolation, LibraryState,
    SparePolicy,
};
use common::{executors, open, system};
use tokio::sync::oneshot;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_uploaded_comes_down_again() {
    for config in executors() {
        let device = open(config).await;
        for len in [1usize, 7, 4096, 5_000_001] {
            let data: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let buffer = device.upload(&data).await.expect("uploads");
            assert_eq!(device.download(&buffer).await.expect("downloads"), data);
            let copy = device.alloc::<f32>(len).await.expect("allocates");
            drop(device.fill(&copy, f32::NAN).submit().expect("queued"));
            device.copy(&buffer, &copy).await.expect("copies");
            assert_eq!(device.download(&copy).await.expect("downloads"), data);
        }
        let pattern = device.alloc::<f64>(1000).await.expect("allocates");
        device.fill(&pattern, 0.1).await.expect("fills");
        assert_eq!(device.download(&pattern).await.expect("downloads"), vec![0.1; 1000]);
        device.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_executor_may_share_the_process() {
    let device = open(DeviceConfig::host(0).isolation(Isolation::Thread)).await;
    let buffer = device.upload(&[1i32, 2, 3]).await.expect("uploads");
    device.fill(&buffer.slice(1..2).expect("inside"), 9).await.expect("fills");
    assert_eq!(device.download(&buffer).await.expect("downloads"), [1, 9, 3]);
    assert_eq!(device.worker_pid(), None);
    let (reply, context) = oneshot::channel();
    device.actor().tell(DeviceMsg::SnapshotContext(reply));
    assert_eq!(context.await.expect("answered"), None, "the host has no CUDA context");
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_sent_before_ready_are_answered_after_it() {
    let device = Device::start(&system().await, DeviceConfig::host(0)).expect("started");
    let (reply, buffer) = oneshot::channel();
    device.actor().tell(DeviceMsg::alloc::<f32>(16, reply));
    let buffer = buffer.await.expect("answered").expect("allocated");
    let (reply, filled) = oneshot::channel();
    device.actor().tell(DeviceMsg::fill(buffer.clone(), 3.0, reply));
    filled.await.expect("answered").expect("filled");
    let host = device.host_buffer::<f32>(16).expect("pinned");
    let (reply, host_back) = oneshot::channel();
    device.actor().tell(DeviceMsg::copy_to_host(buffer.clone(), host, reply));
    let mut host = host_back.await.expect("answered").expect("copied");
    assert_eq!(host[..], [3.0; 16]);
    host.fill(4.0);
    let (reply, host_back) = oneshot::channel();
    device.actor().tell(DeviceMsg::copy_from_host(host, buffer.clone(), reply));
    host_back.await.expect("answered").expect("copied");
    assert_eq!(device.download(&buffer).await.expect("downloads"), [4.0; 16]);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_submitted_while_starting_run_in_order() {
    let device = Device::start(&system().await, DeviceConfig::host(0)).expect("started");
    let buffer = device.alloc::<u32>(8).await.expect("allocates");
    let first = device.fill(&buffer, 1).submit().expect("queued");
    let second = device.fill(&buffer, 2).submit().expect("queued");
    second.await.expect("filled");
    assert!(first.is_finished());
    assert_eq!(device.download(&buffer).await.expect("downloads"), [2; 8]);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
#[allow(deprecated)]
async fn older_names_take_the_typed_path() {
    use atomr_cuda_core::{DType, legacy};
    let (reply, _) = oneshot::channel();
    let DeviceMsg::Operation(request) = legacy::AllocateF32(4, reply) else { panic!("an operation") };
    assert_eq!((request.name(), request.dtype()), ("core.alloc", Some(DType::F32)));
    let (reply, _) = oneshot::channel();
    let DeviceMsg::Operation(request) = legacy::AllocateBf16(4, reply) else { panic!("an operation") };
    assert_eq!(request.dtype(), Some(DType::BF16));
    let device = open(DeviceConfig::host(0)).await;
    let (reply, buffer) = oneshot::channel();
    device.actor().tell(legacy::AllocateF64(4, reply));
    let buffer = buffer.await.expect("answered").expect("allocated");
    let host = device.host_buffer::<f64>(4).expect("pinned");
    let (reply, host_back) = oneshot::channel();
    device.actor().tell(legacy::CopyToHostF64(buffer, host, reply));
    assert_eq!(host_back.await.expect("answered").expect("copied").len(), 4);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_answers_every_operation_with_its_synthetic_error() {
    let device = open(DeviceConfig::mock(0)).await;
    let mock = |error: GpuError| assert!(matches!(error, GpuError::Mock { .. }), "{error}");
    mock(device.alloc::<f32>(4).await.unwrap_err());
    mock(device.host_buffer::<f32>(4).unwrap_err());
    let (reply, answer) = oneshot::channel();
    device.actor().tell(DeviceMsg::alloc::<f32>(4, reply));
    mock(answer.await.expect("answered").unwrap_err());
    assert_eq!(device.generation(), 1);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_generation_and_load_are_true() {
    let device = open(DeviceConfig::host(0).libraries(EnabledLibraries::BLAS | EnabledLibraries::CUDNN)).await;
    let (reply, watch) = oneshot::channel();
    device.actor().tell(DeviceMsg::WatchGeneration(reply));
    assert_eq!(*watch.await.expect("answered").borrow(), 1);
    let (reply, children) = oneshot::channel();
    device.actor().tell(DeviceMsg::SnapshotChildren(reply));
    let children = children.await.expect("answered");
    children.register_extra(5u8);
    assert_eq!(device.children().extra::<u8>(), Some(5), "snapshots share the map");
    let buffer = device.alloc::<f32>(1024).await.expect("allocates");
    let (reply, load) = oneshot::channel();
    device.actor().tell(DeviceMsg::Stats(reply));
    let load = load.await.expect("answered");
    assert_eq!(load.used_bytes, 4096);
    assert_eq!(load.executor, Some(ExecutorKind::Host));
    assert!(load.total_bytes > load.free_bytes && load.free_bytes > 0);
    assert_eq!((load.generation, load.queue_depth, load.in_flight), (1, 0, 0));
    drop(buffer);
    assert_eq!(device.load().await.used_bytes, 0);
    // Core links no library: both are reported, neither is silently ignored.
    let states: Vec<_> = device.libraries().into_iter().map(|status| status.state).collect();
    assert_eq!(states, [LibraryState::NotLinked, LibraryState::NotLinked]);
    device.shutdown().await;
    assert_eq!(device.phase(), DevicePhase::ShutDown);
    assert!(matches!(device.fill(&device_buffer(&device).await, 1.0).await, Err(GpuError::ShutDown { .. })));
}

async fn device_buffer(device: &Device) -> atomr_cuda_core::GpuRef<f32> {
    device.alloc::<f32>(4).await.expect("memory is still there")
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_typed_and_leave_nothing_behind() {
    let device = open(DeviceConfig::host(0).spare(SparePolicy::Cold).memory_limit(64 << 20)).await;
    let other = open(DeviceConfig::host(1).spare(SparePolicy::Cold)).await;
    let a = device.upload(&[1.0f32; 8]).await.expect("uploads");
    let b = device.alloc::<f32>(9).await.expect("allocates");
    let foreign = other.alloc::<f32>(8).await.expect("allocates");

    let error = device.copy(&a, &b).await.unwrap_err();
    assert_eq!(
        error,
        GpuError::ShapeMismatch { operation: "core.copy".into(), argument: "destination".into(), needed: 8, found: 9 }
    );
    let error = device.copy(&a, &foreign).await.unwrap_err();
    assert!(
        matches!(&error, GpuError::WrongDevice { expected, found, .. } if expected == "host:0" && found == "host:1")
    );
    let error = device.copy(&a.slice(..5).expect("inside"), &a.slice(3..).expect("inside")).await.unwrap_err();
    assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
    assert!(matches!(a.slice(3..99).unwrap_err(), GpuError::InvalidArgument { .. }));
    assert!(matches!(device.alloc::<f32>(0).await.unwrap_err(), GpuError::InvalidArgument { .. }));
    assert!(matches!(device.alloc::<f64>(usize::MAX).await.unwrap_err(), GpuError::SizeOverflow { .. }));
    let error = device.alloc::<u8>(1 << 40).await.unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { limited: true, total, .. } if total == 64 << 20), "{error}");
    let error = other.alloc::<u8>(1 << 50).await.unwrap_err();
    assert!(
        matches!(error, GpuError::OutOfMemory { limited: false, requested, .. } if requested == 1 << 50),
        "{error}"
    );

    device.fill(&a, 2.0).await.expect("the device still works");
    assert_eq!(device.load().await.queue_depth, 0);
    device.shutdown().await;
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_at_once() {
    let device = Device::start(&system().await, DeviceConfig::host(0).pending_queue_capacity(3)).expect("started");
    let host = device.host_buffer::<u8>(1).expect("host memory needs no worker");
    drop(host);
    device.ready().await.expect("ready");
    let buffer = device.alloc::<u8>(64).await.expect("allocates");
    let hang = device.fault(atomr_cuda_core::Fault::Hang).deadline(std::time::Duration::from_millis(300));
    let small = Device::start(&system().await, DeviceConfig::host(1).pending_queue_capacity(3).max_in_flight(1))
        .expect("started");
    small.ready().await.expect("ready");
    let blocked = small.alloc::<u8>(64).await.expect("allocates");
    let hung = small
        .fault(atomr_cuda_core::Fault::Hang)
        .deadline(std::time::Duration::from_millis(300))
        .submit()
        .expect("sent");
    let waiting: Vec<_> = (0..3).map(|i| small.fill(&blocked, i).submit().expect("queued")).collect();
    let error = small.fill(&blocked, 9).submit().unwrap_err();
    assert_eq!(error, GpuError::Busy { pending: 3, capacity: 3 });
    assert!(matches!(hung.await.unwrap_err(), GpuError::DeadlineExceeded { .. }));
    for fill in waiting {
        fill.await.expect("queued work goes on with the next worker");
    }
    assert_eq!(small.download(&blocked).await.expect("downloads"), [2; 64]);
    drop(hang);
    device.fill(&buffer, 1).await.expect("fills");
    device.shutdown().await;
    small.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_worker_executable_is_a_typed_error() {
    let config = DeviceConfig::host(0).worker_executable("/nonexistent/worker");
    let error = Device::open(&system().await, config).await.unwrap_err();
    assert!(matches!(&error, GpuError::WorkerStart { reason } if reason.contains("/nonexistent/worker")), "{error}");
    let error = Device::open(&system().await, DeviceConfig::host(0).worker_executable("/bin/true")).await.unwrap_err();
    assert!(matches!(error, GpuError::WorkerStart { .. } | GpuError::Io { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cuda_without_a_driver_is_a_typed_error() {
    if atomr_cuda_core::cuda_available() {
        open(DeviceConfig::new(0)).await.shutdown().await;
        return;
    }
    let error = Device::open(&system().await, DeviceConfig::new(0)).await.unwrap_err();
    assert!(matches!(&error, GpuError::LibraryMissing { searched, .. } if !searched.is_empty()), "{error}");
}
