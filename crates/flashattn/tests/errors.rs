//! What is refused, and how it is said.

use atomr_cuda_core::executor::ExecutorKind;
use atomr_cuda_core::{Call, GpuError, Operation, bf16};
use atomr_cuda_flashattn::{AttentionCall, AttentionOptions, DecodeOptions, Kernels, MaskOptions, Strides};
use atomr_cuda_testing::on_every_executor;

fn refused<O: Operation>(call: Call<O>) -> GpuError {
    match call.submit() {
        Ok(_) => panic!("{} was not refused", O::NAME),
        Err(error) => error,
    }
}

fn is_about(error: &GpuError, expected: &str) {
    assert!(matches!(error, GpuError::InvalidArgument { argument, .. } if argument == expected), "{error}");
}

#[test]
fn what_attention_refuses() {
    on_every_executor(async |device| {
        let alloc = async |len: usize| device.alloc::<bf16>(len).await.unwrap();
        let (q, k, v, o) = (alloc(2048).await, alloc(2048).await, alloc(2048).await, alloc(2048).await);
        let lse = device.alloc::<f32>(32).await.unwrap();
        let good = || device.attention(&q, &k, &v, &o).shape(2, 8, 8, 64).heads(2, 2);
        good().lse(&lse).await.unwrap();

        is_about(&refused(device.attention(&q, &k, &v, &o)), "batch");
        is_about(&refused(good().shape(2, 8, 8, 96)), "head_dim");
        is_about(&refused(good().heads(2, 0)), "heads");
        is_about(&refused(good().heads(3, 2)), "heads");
        is_about(&refused(good().scale(0.0)), "scale");
        is_about(&refused(good().scale(f32::NAN)), "scale");
        is_about(&refused(good().softcap(-1.0)), "softcap");
        is_about(&refused(good().shape(2, 1 << 29, 8, 64)), "seq_q");
        is_about(&refused(good().shape(2, 8, usize::MAX, 64)), "seq_k");
        is_about(&refused(good().shape(1, 8, 8, 64)), "o");
        let strides = |batch, seq, head| Strides { batch, seq, head };
        is_about(&refused(good().q_strides(strides(1024, 127, 64))), "q");
        is_about(&refused(good().k_strides(strides(1024, 64, 64))), "k");
        is_about(&refused(good().o_strides(strides(512, 128, 64))), "o");
        let error = refused(good().v_strides(strides(1 << 40, 128, 64)));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
        let error = refused(good().shape(3, 8, 8, 64));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
        let error = refused(good().lse(&device.alloc::<f32>(31).await.unwrap()));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
        let error = refused(device.attention(&q, &k, &v, &q).shape(2, 8, 8, 64).heads(2, 2));
        assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
        let lengths = device.alloc::<i32>(2).await.unwrap();
        let error = refused(good().packed(&lengths, &lengths, (16, 16)));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
        let f32s = device.alloc::<f32>(2048).await.unwrap();
        let wrong = Call::new(device, good().operation, [f32s.view(), k.view(), v.view(), o.view()]);
        is_about(&refused(wrong), "q");
        let wrong = Call::new(device, good().operation, [q.view(), f32s.view(), v.view(), o.view()]);
        assert!(matches!(refused(wrong), GpuError::DTypeMismatch { .. }));
    });
}

#[test]
fn what_decode_refuses() {
    on_every_executor(async |device| {
        let alloc = async |len: usize| device.alloc::<bf16>(len).await.unwrap();
        let (q, k, v, o) = (alloc(256).await, alloc(4096).await, alloc(4096).await, alloc(256).await);
        let table = device.upload(&[0i32, 1]).await.unwrap();
        let lens = device.upload(&[3i32, 5]).await.unwrap();
        let base = || device.decode_attention(&q, &k, &v, &o).shape(2, 1, 64).heads(2, 2).cache(2, 16);
        let good = || base().pages(&table, &lens, 1);
        good().await.unwrap();
        assert!(base().submit().is_err(), "without pages");
        is_about(&refused(good().cache(2, 24)), "page_size");
        is_about(&refused(good().cache(2, 8)), "page_size");
        is_about(&refused(good().cache(0, 16)), "num_pages");
        is_about(&refused(base().pages(&table, &lens, 0)), "max_pages");
        is_about(&refused(base().pages(&table, &lens, usize::MAX)), "max_pages");
        is_about(&refused(good().splits(0)), "splits");
        is_about(&refused(good().splits(129)), "splits");
        let error = refused(base().pages(&table, &lens, 2));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
        let error = refused(good().cache(4, 16));
        assert!(matches!(error, GpuError::ShapeMismatch { .. }), "{error}");
    });
}

#[test]
fn what_only_the_device_can_tell() {
    on_every_executor(async |device| {
        let big = device.alloc::<bf16>(4096).await.unwrap();
        let odd = big.slice(4..4 + 1024).unwrap();
        let (k, o) = (device.alloc::<bf16>(1024).await.unwrap(), device.alloc::<bf16>(1024).await.unwrap());
        let call = device.attention(&odd, &k, &k, &o).shape(1, 8, 8, 64).heads(2, 2);
        let plan = device.attention_plan(&call).await.unwrap();
        match device.executor() {
            ExecutorKind::Host => {
                call.await.unwrap();
                assert_eq!(plan.kernel, "host");
            }
            ExecutorKind::Cuda => {
                is_about(&call.await.unwrap_err(), "q");
                assert!(plan.kernel.starts_with("forward ") && plan.registers > 0, "{plan:?}");
                assert_eq!(plan.local_bytes, 0, "registers are spilled: {plan:?}");
                let forced = device.attention(&k, &k, &k, &o).shape(1, 8, 8, 64).heads(2, 2).kernels(Kernels::Mma);
                assert_eq!(device.attention_plan(&forced).await.unwrap().kernel, "forward mma.sync");
            }
        }
    });
}
