//! What a device promises when its worker dies.

mod common;

use std::time::Duration;

use atomr_cuda_core::{DeviceConfig, DevicePhase, Fault, GpuError, RestartPolicy, SparePolicy, StaleReason};
use common::{UNBOUNDED, executors, open};

const DEADLINE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn buffers_survive_every_fault_and_the_device_goes_on() {
    for config in executors() {
        for spare in [SparePolicy::Warm, SparePolicy::Cold] {
            let device = open(config.clone().spare(spare).restart_policy(UNBOUNDED)).await;
            let data: Vec<u64> = (0..10_000).collect();
            let kept = device.upload(&data).await.expect("uploads");
            for (i, fault) in Fault::all(device.executor()).iter().enumerate() {
                let before = device.generation();
                let mut strike = device.fault(*fault);
                if matches!(fault, Fault::Hang | Fault::EndlessKernel) {
                    strike = strike.deadline(DEADLINE);
                }
                let error = strike.await.unwrap_err();
                match fault {
                    Fault::Hang | Fault::EndlessKernel => {
                        assert!(matches!(error, GpuError::DeadlineExceeded { .. }), "{fault:?}: {error}");
                    }
                    _ => assert!(matches!(error, GpuError::ContextPoisoned { .. }), "{fault:?}: {error}"),
                }
                let after = device.upload(&[i as u64]).await.expect("the next worker takes over");
                assert_eq!(device.download(&after).await.expect("downloads"), [i as u64]);
                assert_eq!(device.download(&kept).await.expect("downloads"), data, "after {fault:?}");
                assert!(device.generation() > before);
            }
            device.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_work_goes_on_and_what_was_being_written_is_stale() {
    let device = open(DeviceConfig::host(0).max_in_flight(1).restart_policy(UNBOUNDED)).await;
    let target = device.alloc::<u32>(16).await.expect("allocates");
    let hang = device.fault(Fault::Hang).deadline(DEADLINE).submit().expect("sent");
    let fill = device.fill(&target, 5).submit().expect("waits behind it");
    assert!(matches!(hang.await.unwrap_err(), GpuError::DeadlineExceeded { .. }));
    fill.await.expect("never left the front, so it is not lost");
    assert_eq!(device.download(&target).await.expect("downloads"), [5; 16]);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_from_outside_taints_only_what_was_being_written() {
    let device = open(DeviceConfig::host(0).restart_policy(UNBOUNDED)).await;
    let big = device.alloc::<u8>(200 << 20).await.expect("allocates");
    let kept = device.upload(&[1u8, 2, 3]).await.expect("uploads");
    let mut tainted = 0;
    for round in 0..20 {
        let fill = device.fill(&big, round).submit().expect("sent");
        let read = device.copy(&big.slice(..3).expect("inside"), &kept);
        tokio::time::sleep(Duration::from_micros(300 * u64::from(round))).await;
        if let Some(pid) = device.worker_pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        }
        match fill.await {
            Ok(()) => {}
            Err(GpuError::ContextPoisoned { operation, candidates, .. }) => {
                assert_eq!(operation, "core.fill");
                assert!(candidates.contains(&"core.fill".to_string()));
                tainted += 1;
                let error = read.clone().submit().unwrap_err();
                assert!(
                    matches!(&error, GpuError::GpuRefStale { argument, reason: StaleReason::Tainted { by }, .. }
                        if argument == "source" && by == "core.fill"),
                    "{error}"
                );
                device.fill(&big.slice(..9).expect("inside"), 1).submit().expect_err("a part does not heal the whole");
                device.fill(&big, 7).await.expect("the whole does");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(device.download(&kept).await.expect("downloads"), [1, 2, 3]);
    }
    assert!(tainted > 0, "no kill hit a running fill");
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_losses_fail_the_device_and_answer_everybody() {
    let policy = RestartPolicy { max_restarts: 2, ..RestartPolicy::default() };
    let device = open(DeviceConfig::host(0).spare(SparePolicy::Cold).restart_policy(policy)).await;
    let buffer = device.alloc::<f32>(4).await.expect("allocates");
    for _ in 0..3 {
        device.fault(Fault::Kill).await.unwrap_err();
    }
    let error = device.fill(&buffer, 0.0).await.unwrap_err();
    assert!(matches!(&error, GpuError::DeviceFailed { reason, .. } if reason.contains("3 workers lost")), "{error}");
    assert_eq!(device.phase(), DevicePhase::Failed);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_leave_nothing_behind() {
    let device = open(DeviceConfig::host(0).max_in_flight(1).restart_policy(UNBOUNDED)).await;
    let baseline = device.load().await.used_bytes;
    for round in 0..200u32 {
        let buffer = device.alloc::<u32>(1000).await.expect("allocates");
        let call = device.fill(&buffer, round);
        if round % 50 == 7 {
            drop(device.fault(Fault::Hang).deadline(Duration::from_millis(30)).submit().expect("sent"));
        }
        // Awaited for a moment, then dropped: taken back, or left to finish.
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(round % 7) * 50), call).await;
    }
    let last = device.upload(&[42u32]).await.expect("uploads");
    assert_eq!(device.download(&last).await.expect("downloads"), [42]);
    drop(last);
    let load = device.load().await;
    assert_eq!((load.used_bytes, load.queue_depth, load.in_flight), (baseline, 0, 0));
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_and_segments_come_back() {
    let count = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let device = open(DeviceConfig::host(0).restart_policy(UNBOUNDED)).await;
    drop(device.upload(&[0u8; 1 << 20]).await.expect("uploads"));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = count();
    for _ in 0..20 {
        drop(device.alloc::<u8>(300 << 20).await.expect("a segment of its own"));
        device.fault(Fault::Kill).await.unwrap_err();
        drop(device.upload(&[0u8; 1 << 20]).await.expect("uploads"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(count() <= before + 2, "{} descriptors before, {} after", before, count());
    device.shutdown().await;
}
