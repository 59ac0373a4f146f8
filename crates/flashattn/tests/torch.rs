//! Attention beside what PyTorch gives for the same inputs: `reference/torch_attention.py` wrote the
//! file on an H200.

use atomr_cuda_core::bf16;
use atomr_cuda_flashattn::{AttentionCall, AttentionOptions, MaskOptions};
use atomr_cuda_testing::on_every_executor;
use safetensors::{Dtype, SafeTensors};

const FILE: &[u8] = include_bytes!("reference/torch_attention.safetensors");
const CASES: [&str; 5] = ["full_64", "causal_64", "full_128", "causal_128", "full_256"];

fn halves(file: &SafeTensors, name: &str) -> (Vec<bf16>, Vec<usize>) {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::BF16);
    let values = tensor.data().chunks_exact(2).map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]])).collect();
    (values, tensor.shape().to_vec())
}

fn singles(file: &SafeTensors, name: &str) -> Vec<f64> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    tensor.data().chunks_exact(4).map(|bytes| f64::from(value(bytes))).collect()
}

#[test]
fn as_close_to_the_exact_result_as_pytorch_is() {
    let file = SafeTensors::deserialize(FILE).unwrap();
    on_every_executor(async |device| {
        for case in CASES {
            let [(q, shape), (k, keys), (v, _)] = ["q", "k", "v"].map(|name| halves(&file, &format!("{case}.{name}")));
            let (dq, dk, dv) =
                (device.upload(&q).await.unwrap(), device.upload(&k).await.unwrap(), device.upload(&v).await.unwrap());
            let o = device.alloc::<bf16>(q.len()).await.unwrap();
            let call = device.attention(&dq, &dk, &dv, &o);
            let call = call.shape(shape[0], shape[1], keys[1], shape[3]).heads(shape[2], keys[2]);
            if case.starts_with("causal") { call.causal() } else { call }.await.unwrap();
            let found = device.download(&o).await.unwrap();
            let exact = singles(&file, &format!("{case}.o"));
            let (flash, _) = halves(&file, &format!("{case}.flash"));
            let furthest = |values: &[bf16]| {
                values.iter().zip(&exact).map(|(value, exact)| (value.to_f64() - exact).abs()).fold(0.0, f64::max)
            };
            let (ours, theirs) = (furthest(&found), furthest(&flash));
            println!("{case}: at most {ours:.2e} from the exact result; PyTorch's FLASH_ATTENTION {theirs:.2e}");
            // Two roundings to bf16 of values near 4, or what PyTorch's own kernel is off by.
            assert!(ours <= (1.5 * theirs).max(0.02), "{case}: {ours:e}, PyTorch's kernel {theirs:e}");
        }
    });
}
