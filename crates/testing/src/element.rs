//! Element types with the rounding that bounds are made of.

use atomr_cuda_core::{CudaDtype, bf16, f16};
use num_complex::Complex;

/// An element type of a test. A real type drops imaginary parts.
pub trait Element: CudaDtype {
    /// Half the distance from 1 to the next value.
    const EPSILON: f64;
    /// The same for the type in which sums are kept.
    const SUM_EPSILON: f64;
    /// The value as a complex number.
    fn to_complex(self) -> Complex<f64>;
    /// The nearest value of this type.
    fn from_complex(value: Complex<f64>) -> Self;

    /// The real part.
    fn to_f64(self) -> f64 {
        self.to_complex().re
    }

    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self {
        Self::from_complex(Complex::new(value, 0.0))
    }
}

macro_rules! elements {
    ($($type:ty: $epsilon:expr, $sum:expr, $to:expr, $from:expr;)*) => {
        $(
            impl Element for $type {
                const EPSILON: f64 = $epsilon;
                const SUM_EPSILON: f64 = $sum;
                fn to_complex(self) -> Complex<f64> { Complex::new($to(self), 0.0) }
                fn from_complex(value: Complex<f64>) -> Self { $from(value.re) }
            }
        )*
    };
}

macro_rules! complex_elements {
    ($($part:ty),*) => {
        $(
            impl Element for Complex<$part> {
                const EPSILON: f64 = <$part as Element>::EPSILON;
                const SUM_EPSILON: f64 = <$part as Element>::SUM_EPSILON;
                fn to_complex(self) -> Complex<f64> { Complex::new(Element::to_f64(self.re), Element::to_f64(self.im)) }
                fn from_complex(value: Complex<f64>) -> Self {
                    Complex::new(<$part as Element>::from_f64(value.re), <$part as Element>::from_f64(value.im))
                }
            }
        )*
    };
}

const SINGLE: f64 = f32::EPSILON as f64 / 2.0;

elements! {
    f16: 0.5f64 / 1024.0, SINGLE, f16::to_f64, f16::from_f64;
    bf16: 0.5f64 / 128.0, SINGLE, bf16::to_f64, bf16::from_f64;
    f32: SINGLE, SINGLE, f64::from, (|value| value as f32);
    f64: f64::EPSILON / 2.0, f64::EPSILON / 2.0, std::convert::identity, std::convert::identity;
}

complex_elements!(f16, f32, f64);

/// Requires `found` within the error of a sum of `terms` products, whose absolute values sum to `size`.
///
/// # Panics
/// With the values, the error and the bound, when it is not.
pub fn assert_close<T: Element>(found: f64, exact: f64, terms: usize, size: f64, what: &str) {
    let relative = 2.0 * (terms as f64 + 4.0) * T::SUM_EPSILON + 4.0 * T::EPSILON;
    // Half types underflow: near zero a bound relative to the values is too small for them.
    let bound = relative * (size + exact.abs()) + 1e-7 * T::EPSILON.max(SINGLE) / SINGLE * f64::from(T::EPSILON > 1e-6);
    let error = (found - exact).abs();
    assert!(error <= bound, "{what} ({}): {found} is {error:e} from {exact}, more than {bound:e}", T::DTYPE);
}
