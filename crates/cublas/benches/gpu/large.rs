//! Products that keep the whole GPU busy: nothing of ours may be seen in them.

use atomr_cuda_core::{bf16, f16};
use atomr_cuda_cublas::{Blas, GemmOptions, MathMode};
use atomr_cuda_testing::compare::{Side, compare_rates, wanted};
use atomr_cuda_testing::{Element, random, seeded};
use cudarc::cublas::sys::{cublasComputeType_t, cudaDataType};

use crate::Bench;
use crate::raw::{Memory, Product};

const N: usize = 8192;

pub fn run(bench: &Bench) {
    let product = |kind, compute| Product { n: N as i64, kind, compute };
    let full = product(cudaDataType::CUDA_R_32F, cublasComputeType_t::CUBLAS_COMPUTE_32F);
    let tf32 = product(cudaDataType::CUDA_R_32F, cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32);
    let brain = product(cudaDataType::CUDA_R_16BF, cublasComputeType_t::CUBLAS_COMPUTE_32F);
    let half = product(cudaDataType::CUDA_R_16F, cublasComputeType_t::CUBLAS_COMPUTE_32F);
    gemm::<f32>(bench, "f32", 5, MathMode::Default, full);
    gemm::<f32>(bench, "tf32", 30, MathMode::Tf32, tf32);
    gemm::<bf16>(bench, "bf16", 60, MathMode::Default, brain);
    gemm::<f16>(bench, "f16", 60, MathMode::Default, half);
}

/// `count` products behind each other, about a tenth of a second.
fn gemm<T: Element>(bench: &Bench, name: &str, count: usize, math: MathMode, product: Product) {
    let name = format!("cuda: gemm 8192, {name}");
    if !wanted(&name) {
        return;
    }
    // Random values: the GPU computes zeros at a higher clock.
    let values: Vec<T> = random(&mut seeded(2), N * N);
    let device = &bench.low;
    let (a, c) = bench.runtime.block_on(async {
        let a = device.upload(&values).await.expect("room for the operand");
        (a, device.alloc::<T>(N * N).await.expect("room for the product"))
    });
    let (raw_a, raw_c) = (Memory::with(&values), Memory::new(size_of_val(&values[..])));

    let call = || device.gemm(&a, &a, &c).shape(N, N, N).math(math);
    let ours = || {
        for _ in 1..count {
            drop(call().submit().expect("there is room in the queue"));
        }
        call().wait().expect("a product");
    };
    let raw = || {
        (0..count).for_each(|_| bench.raw.gemm(product, &raw_a, &raw_c));
        bench.raw.spin();
    };
    let sides = vec![Side::batch("ours", count, ours).at_most(1.0 / 0.99), Side::batch("raw", count, raw)];
    compare_rates(&name, 15, 2.0 * (N as f64).powi(3) / 1e12, "TFLOP/s", sides);
}
