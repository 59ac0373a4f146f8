//! What is refused before anything is queued, with the same errors on every executor.

use atomr_cuda_core::{Access, BufferShape, Call, DType, Device, GpuError, GpuRef, Operation, f16};
use atomr_cuda_cublas::{Batch, Blas, Gemm, GemmOptions, GemvOptions, Layout, MathMode, PairOptions, VectorOptions};
use atomr_cuda_testing::on_every_executor;

/// Submits and gives the error.
fn refused<O: Operation>(call: Call<O>) -> GpuError {
    match call.submit() {
        Ok(_) => panic!("{} was not refused", O::NAME),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_invalid(error: GpuError, expected: &str) {
    match &error {
        GpuError::InvalidArgument { argument, .. } => assert_eq!(argument, expected, "{error}"),
        other => panic!("expected an invalid `{expected}`, got {other:?}"),
    }
}

async fn three<T: atomr_cuda_core::CudaDtype>(device: &Device, len: usize) -> [GpuRef<T>; 3] {
    let zeros = vec![T::zeroed(); len];
    [device.upload(&zeros).await.unwrap(), device.upload(&zeros).await.unwrap(), device.upload(&zeros).await.unwrap()]
}

#[test]
fn shapes_that_are_missing_zero_too_large_or_overflow() {
    on_every_executor(async |device| {
        let [a, b, c] = three::<f32>(device, 16).await;
        assert_invalid(refused(device.gemm(&a, &b, &c)), "shape");
        assert_invalid(refused(device.gemm(&a, &b, &c).shape(4, 0, 4)), "shape");
        assert_invalid(refused(device.gemv(&a, &b, &c)), "shape");
        assert_invalid(refused(device.gemm_strided_batched(&a, &b, &c).shape(2, 2, 2)), "batch");
        let error = refused(device.gemm(&a, &b, &c).shape(4, 5, 4));
        assert!(
            matches!(&error, GpuError::ShapeMismatch { argument, needed: 20, found: 16, .. } if argument == "b"),
            "{error}"
        );
        let huge = i64::MAX as usize;
        let error = refused(device.gemm(&a, &b, &c).shape(huge, huge, huge));
        assert!(matches!(error, GpuError::SizeOverflow { .. }), "{error}");
        let error = refused(device.gemv(&a, &b, &c).shape(4, 4).inc_x(6));
        assert!(matches!(error, GpuError::ShapeMismatch { needed: 19, .. }), "{error}");
    });
}

#[test]
fn leading_dimensions_increments_and_batches() {
    on_every_executor(async |device| {
        let [a, b, c] = three::<f32>(device, 64).await;
        assert_invalid(refused(device.gemm(&a, &b, &c).shape(4, 5, 6).ld_a(5)), "a");
        assert_invalid(refused(device.gemm(&a, &b, &c).shape(4, 5, 6).transpose_b().ld_b(5)), "b");
        assert_invalid(refused(device.gemm(&a, &b, &c).shape(4, 5, 6).layout(Layout::ColumnMajor).ld_c(3)), "c");
        assert_invalid(refused(device.gemv(&a, &b, &c).shape(4, 5).ld_a(4)), "a");
        assert_invalid(refused(device.axpy(1.0, &a, &b).inc_x(0)), "x");
        assert_invalid(refused(device.dot(&a, &b).count(0)), "x");
        let overlapping = device.gemm_strided_batched(&a, &b, &c).shape(2, 2, 2).batch(3, 4, 4, 3);
        assert_invalid(refused(overlapping), "batch");
        let error = refused(device.axpy(1.0, &a, &b).inc_y(2));
        assert!(matches!(error, GpuError::ShapeMismatch { needed: 127, found: 64, .. }), "{error}");
    });
}

#[test]
fn element_types() {
    on_every_executor(async |device| {
        let [a, b, c] = three::<f32>(device, 16).await;
        let [half, _, _] = three::<f16>(device, 16).await;
        let [whole, other, out] = three::<i32>(device, 16).await;
        let mixed = Call::new(device, Gemm { m: 4, n: 4, k: 4, ..Gemm::new(16) }, [a.view(), half.view(), c.view()]);
        let error = refused(mixed);
        assert!(matches!(error, GpuError::DTypeMismatch { expected: DType::F32, found: DType::F16, .. }), "{error}");
        let error = refused(device.gemm(&whole, &other, &out).shape(4, 4, 4));
        assert!(matches!(error, GpuError::DTypeUnsupported { dtype: DType::I32, .. }), "{error}");
        let error = refused(device.asum(&half));
        assert!(matches!(error, GpuError::DTypeUnsupported { dtype: DType::F16, .. }), "{error}");
        let [x, y, z] = three::<f64>(device, 16).await;
        assert_invalid(refused(device.gemm(&x, &y, &z).shape(4, 4, 4).math(MathMode::Tf32)), "math");
        drop(b);
    });
}

#[test]
fn outputs_that_overlap_inputs() {
    on_every_executor(async |device| {
        let [a, b, _] = three::<f32>(device, 16).await;
        let error = refused(device.gemm(&a, &b, &a).shape(4, 4, 4));
        assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
        let error = refused(device.axpy(1.0, &a, &a));
        assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
        // Inputs may be the same.
        assert_eq!(device.dot(&a, &a).await.unwrap(), 0.0);
    });
}

/// Only a C that is overwritten whole, without being read, may have undefined old contents.
#[test]
fn when_c_is_overwritten_whole() {
    let access = |op: &Gemm| op.arguments()[2].access;
    let dense = Gemm { m: 2, n: 3, k: 4, ..Gemm::new(6) };
    assert_eq!(access(&dense), Access::Write);
    assert_eq!(access(&Gemm { beta: 1.0, ..dense.clone() }), Access::ReadWrite);
    assert_eq!(access(&Gemm { ld_c: Some(4), ..dense.clone() }), Access::ReadWrite);
    assert_eq!(access(&Gemm { c_len: 7, ..dense.clone() }), Access::ReadWrite);
    let batch = |stride_c| Some(Batch { count: 2, stride_a: 0, stride_b: 0, stride_c });
    assert_eq!(access(&Gemm { c_len: 12, batch: batch(6), ..dense.clone() }), Access::Write);
    assert_eq!(access(&Gemm { c_len: 12, batch: batch(7), ..dense.clone() }), Access::ReadWrite);
    let shape = |name, len| BufferShape { name, dtype: DType::F32, len };
    let wrong = dense.check(&[shape("a", 8), shape("b", 12), shape("c", 7)]).unwrap_err();
    assert_invalid(wrong, "c");
}
