//! Element types of device memory.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
/// A complex number as BLAS, cuFFT and cuSOLVER store it: real part, then imaginary part.
pub use num_complex::Complex;

/// The element type of a buffer, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary16.
    F16 = 0,
    /// bfloat16: eight exponent bits, seven fraction bits.
    BF16 = 1,
    /// IEEE 754 binary32.
    F32 = 2,
    /// IEEE 754 binary64.
    F64 = 3,
    /// Signed 8-bit integer.
    I8 = 4,
    /// Unsigned 8-bit integer.
    U8 = 5,
    /// Signed 32-bit integer.
    I32 = 6,
    /// Unsigned 32-bit integer.
    U32 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// Unsigned 64-bit integer.
    U64 = 9,
    /// 8-bit float, four exponent bits, three fraction bits (OCP FP8 E4M3).
    F8E4M3 = 10,
    /// 8-bit float, five exponent bits, two fraction bits (OCP FP8 E5M2).
    F8E5M2 = 11,
    /// Complex number of two `f16`.
    C16 = 12,
    /// Complex number of two `f32`.
    C32 = 13,
    /// Complex number of two `f64`.
    C64 = 14,
}

impl DType {
    /// Every type, in the order of their tags.
    pub const ALL: [DType; 15] = [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::C16,
        DType::C32,
        DType::C64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 | DType::C16 => 4,
            DType::F64 | DType::I64 | DType::U64 | DType::C32 => 8,
            DType::C64 => 16,
        }
    }

    /// The usual short name: `f32`, `bf16`, `f8e4m3`, `c64` (two `f64`).
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::C16 => "c16",
            DType::C32 => "c32",
            DType::C64 => "c64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that may stand in device memory: plain data with a [`DType`].
///
/// The set is closed: executors and libraries match on [`DType`].
pub trait CudaDtype: bytemuck::Pod + Send + Sync + fmt::Debug + sealed::Sealed {
    /// The tag of this type.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! cuda_dtypes {
    ($($rust:ty => $tag:ident,)*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl CudaDtype for $rust {
                const DTYPE: DType = DType::$tag;
            }
        )*
    };
}

cuda_dtypes! {
    f16 => F16,
    bf16 => BF16,
    f32 => F32,
    f64 => F64,
    i8 => I8,
    u8 => U8,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    F8E4M3 => F8E4M3,
    F8E5M2 => F8E5M2,
    Complex<f16> => C16,
    Complex<f32> => C32,
    Complex<f64> => C64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_sizes_agree_with_the_rust_types() {
        fn check<T: CudaDtype>(tag: u8) {
            assert_eq!(T::DTYPE as u8, tag);
            assert_eq!(T::DTYPE.size(), size_of::<T>(), "{}", T::DTYPE);
        }
        check::<f16>(0);
        check::<bf16>(1);
        check::<f32>(2);
        check::<f64>(3);
        check::<i8>(4);
        check::<u8>(5);
        check::<i32>(6);
        check::<u32>(7);
        check::<i64>(8);
        check::<u64>(9);
        check::<F8E4M3>(10);
        check::<F8E5M2>(11);
        check::<Complex<f16>>(12);
        check::<Complex<f32>>(13);
        check::<Complex<f64>>(14);
        assert!(DType::ALL.iter().enumerate().all(|(i, d)| *d as usize == i));
    }
}
