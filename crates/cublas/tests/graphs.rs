//! Graphs give what their list gives, may be changed, and survive the worker.

use atomr_cuda_core::{Device, Fault, GpuError, GpuRef};
use atomr_cuda_cublas::{Blas, GemmOptions};
use atomr_cuda_testing::on_every_executor;

const N: usize = 16;

async fn filled(device: &Device, value: f32) -> GpuRef<f32> {
    let buffer = device.alloc(N * N).await.unwrap();
    device.fill(&buffer, value).await.unwrap();
    buffer
}

async fn first(device: &Device, buffer: &GpuRef<f32>) -> f32 {
    let values = device.download(buffer).await.unwrap();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values[0]
}

#[test]
fn a_launch_runs_the_whole_list_in_order() {
    on_every_executor(async |device| {
        let (a, b) = (filled(device, 1.0).await, filled(device, 2.0).await);
        let (c, sum) = (filled(device, 0.0).await, filled(device, 0.0).await);
        let mut recording = device.record();
        recording.add(device.gemm(&a, &b, &c).shape(N, N, N)).unwrap();
        recording.add(device.axpy(1.0, &c, &sum)).unwrap();
        recording.add(device.copy(&sum, &a)).unwrap();
        let graph = recording.finish().unwrap();
        assert_eq!(first(device, &sum).await, 0.0, "recording runs nothing");
        graph.launch().await.unwrap();
        // c = 16 * 1 * 2, then a = 32 and c = 16 * 32 * 2.
        assert_eq!(first(device, &sum).await, 32.0);
        graph.launch().await.unwrap();
        assert_eq!(first(device, &sum).await, 32.0 + 1024.0);
    });
}

#[test]
fn parameters_and_buffers_may_be_changed_between_launches() {
    on_every_executor(async |device| {
        let (x, y, z) = (filled(device, 1.0).await, filled(device, 0.0).await, filled(device, 10.0).await);
        let mut recording = device.record();
        let add = recording.add(device.axpy(2.0, &x, &y)).unwrap();
        let mut graph = recording.finish().unwrap();
        graph.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 2.0);
        graph.set(add, device.axpy(5.0, &x, &y)).unwrap();
        graph.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 7.0);
        graph.replace(&x, &z).unwrap();
        graph.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 57.0);

        let other = graph.set(add, device.scal(2.0, &x)).unwrap_err();
        assert!(other.to_string().contains("cublas.axpy") && other.to_string().contains("cublas.scal"), "{other}");
        let short = device.alloc::<f32>(3).await.unwrap();
        assert!(matches!(graph.replace(&z, &short), Err(GpuError::ShapeMismatch { .. })));
        assert!(matches!(graph.replace(&z, &y), Err(GpuError::Aliased { .. })));
        graph.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 107.0, "refused changes change nothing");
    });
}

#[test]
fn graphs_are_part_of_graphs_and_are_drawn() {
    on_every_executor(async |device| {
        let (x, y) = (filled(device, 1.0).await, filled(device, 0.0).await);
        let mut recording = device.record();
        recording.add(device.fill(&x, 3.0)).unwrap();
        recording.add(device.axpy(1.0, &x, &y)).unwrap();
        let child = recording.finish().unwrap();
        let mut recording = device.record();
        recording.add_graph(&child).unwrap();
        let places = recording.add_graph(&child).unwrap();
        let mut parent = recording.finish().unwrap();
        assert_eq!((child.len(), parent.len(), places.len()), (2, 4, 2));
        parent.set(places[0], device.fill(&x, 4.0)).unwrap();
        parent.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 7.0);
        let dot = child.to_dot();
        assert!(dot.contains("1: cublas.axpy") && dot.contains("n0 -> n1"), "{dot}");
    });
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    on_every_executor(async |device| {
        let x = filled(device, 1.0).await;
        assert!(matches!(device.record().finish(), Err(GpuError::InvalidArgument { .. })));
        let value = device.record().add(device.dot(&x, &x)).unwrap_err();
        assert!(value.to_string().contains("returns a value"), "{value}");
        let shape = device.record().add(device.gemm(&x, &x, &x).shape(N, N, N)).unwrap_err();
        assert!(matches!(shape, GpuError::Aliased { .. }));
    });
}

#[test]
fn a_graph_survives_the_worker() {
    on_every_executor(async |device| {
        let (x, y) = (filled(device, 1.0).await, filled(device, 0.0).await);
        let mut recording = device.record();
        for _ in 0..100 {
            recording.add(device.axpy(1.0, &x, &y)).unwrap();
        }
        let graph = recording.finish().unwrap();
        graph.launch().await.unwrap();
        assert!(device.fault(Fault::Abort).await.is_err());
        graph.launch().await.unwrap();
        assert_eq!(first(device, &y).await, 200.0);
        drop(graph.launch().submit().unwrap());
        drop(graph);
        assert_eq!(first(device, &y).await, 300.0, "a graph may be dropped while it runs");
    });
}
