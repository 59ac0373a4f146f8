//! The operation as data, its checks, and the calls that make it. No actor and no CUDA here.

mod call;
mod layout;
mod transform;

use atomr_cuda_core::{Complex, CudaDtype, EnabledLibraries, LibraryId, Operation, f16};

pub use call::{Fft, FftOptions};
pub use layout::{Embedding, Lengths};
pub use transform::{Kind, Norm, Transform};

/// The number of this library.
pub const LIBRARY: LibraryId = LibraryId::of(EnabledLibraries::CUFFT);

pub(crate) const OPERATIONS: &[(u16, &str)] = &[Transform::ID];

/// A real element type, with the complex one that belongs to it: `f32`, `f64`, `f16`.
pub trait Real: CudaDtype {
    /// Two of it.
    type Complex: CudaDtype;
}

impl Real for f16 {
    type Complex = Complex<f16>;
}
impl Real for f32 {
    type Complex = Complex<f32>;
}
impl Real for f64 {
    type Complex = Complex<f64>;
}

/// A complex element type.
pub trait ComplexElement: CudaDtype {}
impl ComplexElement for Complex<f16> {}
impl ComplexElement for Complex<f32> {}
impl ComplexElement for Complex<f64> {}
