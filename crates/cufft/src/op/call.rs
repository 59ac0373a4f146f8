//! The calls that this library gives a device, and their options.

use atomr_cuda_core::{Call, Device, GpuRef};

use super::layout::{Embedding, Lengths};
use super::transform::{Kind, Norm, Transform};
use super::{ComplexElement, Real};

/// The calls of cuFFT on a [`Device`].
///
/// [`shape`](FftOptions::shape) must be given for each. Arrays are row-major and dense, transforms one
/// behind the other, unless [`input`](FftOptions::input) and [`output`](FftOptions::output) say
/// otherwise.
pub trait Fft {
    /// Complex to complex: `y = F x` for each transform of the batch (`CUFFT_C2C`, `CUFFT_Z2Z`).
    fn fft<C: ComplexElement>(&self, x: &GpuRef<C>, y: &GpuRef<C>) -> Call<Transform>;
    /// Complex to complex with the other sign: `inverse(forward(x)) = N x`, unless
    /// [`norm`](FftOptions::norm) says otherwise.
    fn ifft<C: ComplexElement>(&self, x: &GpuRef<C>, y: &GpuRef<C>) -> Call<Transform>;
    /// Real to complex (`CUFFT_R2C`, `CUFFT_D2Z`): the last dimension of y has `n / 2 + 1` elements;
    /// the others follow from symmetry.
    fn rfft<R: Real>(&self, x: &GpuRef<R>, y: &GpuRef<R::Complex>) -> Call<Transform>;
    /// Complex to real (`CUFFT_C2R`, `CUFFT_Z2D`), the inverse of [`rfft`](Fft::rfft): lengths are
    /// those of y. The contents of x are lost: cuFFT works in it. Imaginary parts that symmetry makes
    /// zero are not looked at.
    fn irfft<R: Real>(&self, x: &GpuRef<R::Complex>, y: &GpuRef<R>) -> Call<Transform>;
    /// [`fft`](Fft::fft) into the same buffer.
    fn fft_in_place<C: ComplexElement>(&self, x: &GpuRef<C>) -> Call<Transform>;
    /// [`ifft`](Fft::ifft) into the same buffer.
    fn ifft_in_place<C: ComplexElement>(&self, x: &GpuRef<C>) -> Call<Transform>;
    /// [`rfft`](Fft::rfft) into the same buffer, whose rows have `2 * (n / 2 + 1)` real elements: n
    /// numbers and room, and afterwards pairs of real and imaginary part.
    fn rfft_in_place<R: Real>(&self, x: &GpuRef<R>) -> Call<Transform>;
    /// [`irfft`](Fft::irfft) into the same buffer, laid out as for
    /// [`rfft_in_place`](Fft::rfft_in_place).
    fn irfft_in_place<R: Real>(&self, x: &GpuRef<R>) -> Call<Transform>;
}

impl Fft for Device {
    fn fft<C: ComplexElement>(&self, x: &GpuRef<C>, y: &GpuRef<C>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::Forward, false), [x.view(), y.view()])
    }

    fn ifft<C: ComplexElement>(&self, x: &GpuRef<C>, y: &GpuRef<C>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::Inverse, false), [x.view(), y.view()])
    }

    fn rfft<R: Real>(&self, x: &GpuRef<R>, y: &GpuRef<R::Complex>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::RealForward, false), [x.view(), y.view()])
    }

    fn irfft<R: Real>(&self, x: &GpuRef<R::Complex>, y: &GpuRef<R>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::RealInverse, false), [x.view(), y.view()])
    }

    fn fft_in_place<C: ComplexElement>(&self, x: &GpuRef<C>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::Forward, true), [x.view()])
    }

    fn ifft_in_place<C: ComplexElement>(&self, x: &GpuRef<C>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::Inverse, true), [x.view()])
    }

    fn rfft_in_place<R: Real>(&self, x: &GpuRef<R>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::RealForward, true), [x.view()])
    }

    fn irfft_in_place<R: Real>(&self, x: &GpuRef<R>) -> Call<Transform> {
        Call::new(self, Transform::new(Kind::RealInverse, true), [x.view()])
    }
}

/// Options of the calls.
pub trait FftOptions: Sized {
    /// Lengths of the transform, one to three, the slowest dimension first; of the real side, where
    /// there is one. Must be given. In f16, powers of two.
    fn shape(self, lengths: &[usize]) -> Self;
    /// Transforms; without it, one.
    fn batch(self, batch: usize) -> Self;
    /// What the result is multiplied by; without it nothing, as cuFFT does.
    fn norm(self, norm: Norm) -> Self;
    /// Where the input's elements lie: extents of the array (`inembed`), from element to element
    /// (`istride`), from transform to transform (`idist`).
    fn input(self, embed: &[usize], stride: usize, distance: usize) -> Self;
    /// Where the output's elements lie (`onembed`, `ostride`, `odist`). Those between them are left
    /// as they are.
    fn output(self, embed: &[usize], stride: usize, distance: usize) -> Self;
}

fn lengths(lengths: &[usize]) -> Lengths {
    lengths.iter().map(|length| *length as u64).collect()
}

fn embedding(embed: &[usize], stride: usize, distance: usize) -> Option<Embedding> {
    Some(Embedding { embed: lengths(embed), stride: stride as u64, distance: distance as u64 })
}

impl FftOptions for Call<Transform> {
    fn shape(self, shape: &[usize]) -> Self {
        self.map(|op| Transform { lengths: lengths(shape), ..op })
    }

    fn batch(self, batch: usize) -> Self {
        self.map(|op| Transform { batch: batch as u64, ..op })
    }

    fn norm(self, norm: Norm) -> Self {
        self.map(|op| Transform { norm, ..op })
    }

    fn input(self, embed: &[usize], stride: usize, distance: usize) -> Self {
        self.map(|op| Transform { input: embedding(embed, stride, distance), ..op })
    }

    fn output(self, embed: &[usize], stride: usize, distance: usize) -> Self {
        self.map(|op| Transform { output: embedding(embed, stride, distance), ..op })
    }
}
