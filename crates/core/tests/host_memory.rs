//! Pinned host memory, and plain slices that cross it.

mod common;

use std::time::Duration;

use atomr_cuda_core::{DeviceConfig, GpuError, HostBuf};
use common::{UNBOUNDED, executors, open};
use ndarray::{Array2, Ix2, array};

/// Elements of three pieces and a bit, of a type that does not divide them.
const LONG: usize = (50 << 20) / 16 + 3;

#[tokio::test(flavor = "multi_thread")]
async fn slices_of_many_pieces_keep_their_order() {
    for config in executors() {
        let device = open(config).await;
        let data: Vec<[u64; 2]> = (0..LONG as u64).map(|i| [i, i.wrapping_mul(0x9e37_79b9_7f4a_7c15)]).collect();
        let data: &[u64] = bytemuck::cast_slice(&data);
        let buffer = device.upload(data).await.expect("uploads");
        assert!(device.download(&buffer).await.expect("downloads") == data);
        let mut again = vec![0; data.len()];
        device.download_into(&buffer, &mut again).await.expect("downloads");
        assert!(again == data);
        let reversed: Vec<u64> = data.iter().rev().copied().collect();
        device.upload_into(&reversed, &buffer).await.expect("uploads");
        assert!(device.download(&buffer).await.expect("downloads") == reversed);
        device.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_of_another_length_are_refused() {
    let device = open(DeviceConfig::host(0)).await;
    let buffer = device.alloc::<f32>(8).await.expect("allocates");
    let error = device.upload_into(&[0.0; 7], &buffer).await.unwrap_err();
    assert!(matches!(error, GpuError::ShapeMismatch { needed: 7, found: 8, .. }), "{error}");
    let error = device.download_into(&buffer, &mut [0.0; 9]).await.unwrap_err();
    assert!(matches!(error, GpuError::ShapeMismatch { needed: 8, found: 9, .. }), "{error}");
    assert!(matches!(device.upload::<f32>(&[]).await.unwrap_err(), GpuError::InvalidArgument { .. }));
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tainted_buffer_of_many_pieces_is_sound_after_an_upload() {
    let device = open(DeviceConfig::host(0).restart_policy(UNBOUNDED)).await;
    let data = vec![3u8; 40 << 20];
    let buffer = device.upload(&data).await.expect("uploads");
    for round in 0..200 {
        device.ready().await.expect("the next worker takes over");
        let fill = device.fill(&buffer, 7).submit().expect("sent");
        tokio::time::sleep(Duration::from_micros(100 * (round % 40))).await;
        if let Some(pid) = device.worker_pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
            // It may be gone already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        if fill.await.is_err() {
            break;
        }
    }
    assert!(buffer.view().tainted_by().is_some(), "no kill hit a running fill");
    device.upload_into(&data, &buffer).await.expect("overwrites it whole");
    assert!(device.download(&buffer).await.expect("downloads") == data);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_memory_has_a_limit_is_counted_and_given_back() {
    const MIB: u64 = 1 << 20;
    let device = open(DeviceConfig::host(0).host_memory_limit(70 * MIB)).await;
    let used = async || {
        let load = device.load().await;
        (load.host_used_bytes, load.host_reserved_bytes)
    };
    assert_eq!(used().await, (0, 0));
    let first: HostBuf<u8> = device.host_buffer(1000).expect("pinned");
    assert_eq!(used().await, (1024, 64 * MIB), "blocks are multiples of 256 bytes, the pool grows by 64 MiB");
    // There is no room for another 64 MiB, but for what is asked.
    let own: HostBuf<u8> = device.host_buffer(5 * MIB as usize).expect("from the pool");
    let rest: HostBuf<u8> = device.host_buffer(56 * MIB as usize).expect("from the pool");
    let error = device.host_buffer::<u8>(8 * MIB as usize).unwrap_err();
    assert!(
        matches!(error, GpuError::OutOfMemory { requested, limited: true, total, .. }
            if requested == 8 * MIB && total == 70 * MIB),
        "{error}"
    );
    let small: HostBuf<u8> = device.host_buffer(6 * MIB as usize).expect("memory of its own");
    assert_eq!(used().await.1, 70 * MIB);
    drop((first, own, rest));
    assert_eq!(used().await.1, 70 * MIB, "the pool keeps it");
    device.trim_host_memory();
    assert_eq!(used().await, (6 * MIB, 6 * MIB));
    drop(small);
    assert_eq!(used().await, (0, 0));
    let again = device.host_buffer_from(&[1.5f32; 100]).expect("pinned");
    let buffer = device.alloc::<f32>(100).await.expect("allocates");
    let again = device.copy_from_host(again, &buffer).await.expect("copies");
    assert_eq!(again[..], [1.5; 100]);
    assert_eq!(device.download(&buffer).await.expect("downloads"), [1.5; 100]);
    device.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_keep_their_elements_whatever_their_order() {
    let device = open(DeviceConfig::host(0)).await;
    let array = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let buffer = device.upload_array(&array).await.expect("uploads");
    assert_eq!(device.download_array(&buffer, Ix2(2, 3)).await.expect("downloads"), array);
    let turned = device.upload_array(&array.t()).await.expect("uploads");
    assert_eq!(device.download(&turned).await.expect("downloads"), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let error = device.download_array(&buffer, Ix2(2, 4)).await.unwrap_err();
    assert!(matches!(&error, GpuError::InvalidArgument { argument, .. } if argument == "shape"), "{error}");
    let none: Array2<f32> = Array2::zeros((0, 3));
    assert!(device.upload_array(&none).await.is_err());

    let mut host = device.host_buffer::<f32>(6).expect("pinned");
    host.array_mut(Ix2(3, 2)).expect("fits").assign(&array.t());
    assert_eq!(host[..], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(host.array(Ix2(3, 2)).expect("fits")[[2, 1]], 6.0);
    assert!(host.array(Ix2(3, 3)).is_err());
    assert_eq!(host.as_bytes().len(), 24);
    host.as_bytes_mut().fill(0);
    assert_eq!(host[..], [0.0; 6]);
    device.shutdown().await;
}
