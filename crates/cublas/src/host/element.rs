//! The element types, and how each multiplies matrices.

use atomr_cuda_core::{CudaDtype, bf16, f16};

use super::matrix::{MatrixMut, MatrixRef};
use super::product::{direct, widened};

/// A type that this library computes with.
pub(super) trait Element: CudaDtype {
    /// The value, exactly.
    fn to_f64(self) -> f64;
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// The value in single precision.
    fn to_f32(self) -> f32;
    /// The nearest value.
    fn from_f32(value: f32) -> Self;
    /// A factor as the GPU takes it: in `f32`, except for `f64`.
    fn factor(value: f64) -> f64;
    /// `c = alpha a b + beta c`; with `beta` 0, c is not read.
    fn multiply(
        c: &mut MatrixMut<'_, Self>,
        a: &MatrixRef<'_, Self>,
        b: &MatrixRef<'_, Self>,
        factors: [f64; 2],
        threads: usize,
    );
}

macro_rules! elements {
    ($($type:ty: $to_f64:expr, $from_f64:expr, $to_f32:expr, $from_f32:expr, $factor:expr, $multiply:expr;)*) => {
        $(impl Element for $type {
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }

            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            fn to_f32(self) -> f32 {
                $to_f32(self)
            }

            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }

            fn factor(value: f64) -> f64 {
                $factor(value)
            }

            fn multiply(
                c: &mut MatrixMut<'_, Self>,
                a: &MatrixRef<'_, Self>,
                b: &MatrixRef<'_, Self>,
                factors: [f64; 2],
                threads: usize,
            ) {
                $multiply(c, a, b, factors, threads)
            }
        })*
    };
}

elements! {
    f16: f16::to_f64, f16::from_f64, f16::to_f32, f16::from_f32, round_to_f32, widened;
    bf16: bf16::to_f64, bf16::from_f64, bf16::to_f32, bf16::from_f32, round_to_f32, widened;
    f32: f64::from, (|value| value as f32), std::convert::identity, std::convert::identity, round_to_f32, direct;
    f64: std::convert::identity, std::convert::identity, (|value| value as f32), f64::from, std::convert::identity, direct;
}

fn round_to_f32(value: f64) -> f64 {
    f64::from(value as f32)
}

/// Evaluates `$body` with `$T` as the type of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            atomr_cuda_core::DType::F16 => {
                type $T = atomr_cuda_core::f16;
                $body
            }
            atomr_cuda_core::DType::BF16 => {
                type $T = atomr_cuda_core::bf16;
                $body
            }
            atomr_cuda_core::DType::F32 => {
                type $T = f32;
                $body
            }
            atomr_cuda_core::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err(atomr_cuda_core::GpuError::DTypeUnsupported {
                operation: "cublas".into(),
                dtype: other,
                supported: "f16, bf16, f32, f64".into(),
            }),
        }
    };
}

pub(super) use with_element;
