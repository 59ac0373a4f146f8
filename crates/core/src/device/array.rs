//! Arrays of `ndarray`: shapes stay with the host, buffers are row-major and without gaps.

use ndarray::{Array, ArrayBase, ArrayView, ArrayViewMut, Data, Dimension, ShapeError};

use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::memory::{GpuRef, HostBuf};

use super::handle::Device;

impl Device {
    /// A new buffer with the elements of `array` in row-major order, whatever its own order is.
    ///
    /// # Errors
    /// As [`Device::upload`]; also for an array without elements.
    pub async fn upload_array<S, D>(&self, array: &ArrayBase<S, D>) -> Result<GpuRef<S::Elem>>
    where
        S: Data<Elem: CudaDtype>,
        D: Dimension,
    {
        match array.as_slice() {
            Some(elements) => self.upload(elements).await,
            None => self.upload(&array.iter().copied().collect::<Vec<_>>()).await,
        }
    }

    /// A buffer's elements as a row-major array of this shape.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for a shape with another number of elements; else as
    /// [`Device::download`].
    pub async fn download_array<T, D>(&self, source: &GpuRef<T>, shape: D) -> Result<Array<T, D>>
    where
        T: CudaDtype,
        D: Dimension,
    {
        if shape.size_checked() != Some(source.len()) {
            let reason = format!("{shape:?} for {} elements", source.len());
            return Err(GpuError::invalid("core.download", "shape", reason));
        }
        let elements = self.download(source).await?;
        Array::from_shape_vec(shape, elements).map_err(|error| refused("core.download", source.len(), error))
    }
}

impl<T: CudaDtype> HostBuf<T> {
    /// The elements as a row-major array of this shape; nothing is copied.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for a shape with more elements.
    pub fn array<D: Dimension>(&self, shape: D) -> Result<ArrayView<'_, T, D>> {
        ArrayView::from_shape(shape, self).map_err(|error| refused("HostBuf::array", self.len(), error))
    }

    /// The elements as a row-major array of this shape, for writing; nothing is copied.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for a shape with more elements.
    pub fn array_mut<D: Dimension>(&mut self, shape: D) -> Result<ArrayViewMut<'_, T, D>> {
        let len = self.len();
        ArrayViewMut::from_shape(shape, &mut self[..]).map_err(|error| refused("HostBuf::array_mut", len, error))
    }
}

fn refused(operation: &str, len: usize, error: ShapeError) -> GpuError {
    GpuError::invalid(operation, "shape", format!("{len} elements: {error}"))
}
