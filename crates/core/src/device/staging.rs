//! Plain slices to and from the device, through pinned memory in pieces: while one piece crosses the
//! bus, the processor's cores copy the next.

use std::collections::VecDeque;

use rayon::prelude::*;

use crate::completion::Pending;
use crate::dtype::CudaDtype;
use crate::error::{GpuError, Result};
use crate::memory::{GpuRef, HostBuf};

use super::handle::Device;
use super::transfer::HostCopy;

/// Bytes of a piece.
const PIECE: usize = 16 << 20;
/// Pieces on their way at a time.
const PIECES: usize = 4;
/// Fewer bytes than this are not worth a second core.
const SHARE: usize = 256 << 10;

impl Device {
    /// A new buffer with the contents of `data`.
    ///
    /// # Errors
    /// As [`Device::alloc`] and [`Device::upload_into`].
    pub async fn upload<T: CudaDtype>(&self, data: &[T]) -> Result<GpuRef<T>> {
        let buffer = self.alloc::<T>(data.len()).await?;
        self.upload_into(data, &buffer).await?;
        Ok(buffer)
    }

    /// Copies `data` into a buffer of the same length, through pinned memory in pieces, with all cores.
    ///
    /// # Errors
    /// [`GpuError::ShapeMismatch`] for another length; what may happen to a copy. The buffer's contents
    /// are undefined then.
    pub async fn upload_into<T: CudaDtype>(&self, data: &[T], destination: &GpuRef<T>) -> Result<()> {
        expect_len("core.upload", "destination", data.len(), destination.len())?;
        if size_of_val(data) > PIECE && destination.view().tainted_by().is_some() {
            // Pieces do not overwrite a buffer whole.
            drop(self.fill(destination, T::zeroed()).submit()?);
        }
        let piece = (PIECE / size_of::<T>()).min(data.len());
        let mut moving: VecDeque<Pending<HostCopy<T>>> = VecDeque::new();
        for (i, chunk) in data.chunks(piece).enumerate() {
            let mut host = match moving.pop_front_if(|_| i >= PIECES) {
                Some(copy) => copy.await?,
                None => self.host_buffer::<T>(piece)?,
            };
            copy(chunk, &mut host[..chunk.len()]);
            let mut call = self.copy_from_host(host, &destination.slice(i * piece..i * piece + chunk.len())?);
            call.shorten_host(chunk.len(), 0)?;
            moving.push_back(call.submit()?);
        }
        for copy in moving {
            copy.await?;
        }
        Ok(())
    }

    /// The contents of a buffer.
    ///
    /// # Errors
    /// As [`Device::download_into`].
    pub async fn download<T: CudaDtype>(&self, source: &GpuRef<T>) -> Result<Vec<T>> {
        // Pages of zeros that the kernel gives when they are written first, by many cores at once.
        let mut data = bytemuck::zeroed_vec(source.len());
        self.download_into(source, &mut data).await?;
        Ok(data)
    }

    /// Copies the contents of a buffer into a slice of the same length, through pinned memory in
    /// pieces, with all cores. Memory that was used before is filled faster than new memory.
    ///
    /// # Errors
    /// [`GpuError::ShapeMismatch`] for another length; what may happen to a copy. The slice is filled in
    /// part then.
    pub async fn download_into<T: CudaDtype>(&self, source: &GpuRef<T>, data: &mut [T]) -> Result<()> {
        expect_len("core.download", "data", source.len(), data.len())?;
        let piece = (PIECE / size_of::<T>()).min(data.len());
        let mut free: Vec<HostBuf<T>> = Vec::new();
        let mut moving: VecDeque<Pending<HostCopy<T>>> = VecDeque::new();
        let mut sent = 0;
        for chunk in data.chunks_mut(piece) {
            while sent < source.len() && moving.len() < PIECES {
                let len = piece.min(source.len() - sent);
                let host = match free.pop() {
                    Some(host) => host,
                    None => self.host_buffer::<T>(piece)?,
                };
                let mut call = self.copy_to_host(&source.slice(sent..sent + len)?, host);
                call.shorten_host(len, 1)?;
                moving.push_back(call.submit()?);
                sent += len;
            }
            if let Some(arrived) = moving.pop_front() {
                let host = arrived.await?;
                copy(&host[..chunk.len()], chunk);
                free.push(host);
            }
        }
        Ok(())
    }
}

/// Copies with as many cores as it is worth.
fn copy<T: CudaDtype>(from: &[T], to: &mut [T]) {
    let cores = rayon::current_num_threads().min(size_of_val(from) / SHARE).max(1);
    if cores == 1 {
        to.copy_from_slice(from);
        return;
    }
    let share = from.len().div_ceil(cores);
    to.par_chunks_mut(share).zip(from.par_chunks(share)).for_each(|(to, from)| to.copy_from_slice(from));
}

fn expect_len(operation: &str, argument: &str, needed: usize, found: usize) -> Result<()> {
    if needed == found {
        return Ok(());
    }
    let (needed, found) = (needed as u64, found as u64);
    Err(GpuError::ShapeMismatch { operation: operation.into(), argument: argument.into(), needed, found })
}
