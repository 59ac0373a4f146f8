//! The element types, and those in which they are computed.

use atomr_cuda_core::{Complex, CudaDtype, f16};

/// An element of a buffer.
pub(super) trait Element: CudaDtype {
    /// What it is computed in.
    type Wide: Copy + Send + Sync;

    fn widen(self) -> Self::Wide;
    /// The nearest element to `factor` times the value.
    fn narrow(value: Self::Wide, factor: f64) -> Self;
}

macro_rules! elements {
    ($($element:ty, $wide:ty: $widen:expr, $narrow:expr;)*) => {
        $(
            impl Element for $element {
                type Wide = $wide;

                fn widen(self) -> $wide {
                    $widen(self)
                }

                fn narrow(value: $wide, factor: f64) -> Self {
                    $narrow(value * factor as $wide)
                }
            }

            impl Element for Complex<$element> {
                type Wide = Complex<$wide>;

                fn widen(self) -> Complex<$wide> {
                    Complex::new($widen(self.re), $widen(self.im))
                }

                fn narrow(value: Complex<$wide>, factor: f64) -> Self {
                    let value = value * factor as $wide;
                    Complex::new($narrow(value.re), $narrow(value.im))
                }
            }
        )*
    };
}

elements! {
    f16, f32: f16::to_f32, f16::from_f32;
    f32, f32: std::convert::identity, std::convert::identity;
    f64, f64: std::convert::identity, std::convert::identity;
}
