//! The operations as data, their checks, and the calls that make them. No actor and no CUDA here.

mod compile;
mod launch;
mod occupancy;
mod program;
#[cfg(test)]
mod tests;

use atomr_cuda_core::{Call, Device, EnabledLibraries, LibraryId, Operation};

use crate::compiler::Source;

pub use compile::Compile;
pub use launch::{Dim, Launch, LaunchOptions};
pub use occupancy::{Occupancy, OccupancyQuery};
pub use program::{DeviceLimits, KernelFn, KernelInfo, Program};

pub(crate) use launch::Value;
pub(crate) use program::{Built, ProgramKey, key_of, pack};

/// The number of this library.
pub const LIBRARY: LibraryId = LibraryId::of(EnabledLibraries::NVRTC);

pub(crate) const OPERATIONS: &[(u16, &str)] = &[Compile::ID, Launch::ID, OccupancyQuery::ID];

/// Kernels of one's own on a device. Every method makes a [`Call`] that does nothing until it is
/// awaited, submitted or waited for.
///
/// On a host device each of them answers
/// [`Unsupported`](atomr_cuda_core::GpuError::Unsupported): CUDA C++ runs on a GPU.
pub trait Nvrtc: sealed::Device {
    /// Compiles `source` for this device and loads it there. The [`Program`] that comes back outlives
    /// the worker. Maps to `nvrtcCompileProgram` and `cuModuleLoadData`, on a side thread.
    ///
    /// A source with all its headers may take some 500 KB; beyond that, put headers into a folder
    /// ([`Source::include_dir`]).
    fn compile(&self, source: &Source) -> Call<Compile>;

    /// Launches a kernel, in order with the operations before it: its arguments, in the kernel's
    /// order, its grid and block by [`LaunchOptions`]. By default one block of one thread. Maps to
    /// `cuLaunchKernelEx`.
    fn launch(&self, kernel: &KernelFn) -> Call<Launch>;

    /// How many blocks of `threads` threads, each with `dynamic_shared` bytes of dynamic shared
    /// memory, a multiprocessor runs at a time, and which block would suit it best. Maps to
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor` and `cuOccupancyMaxPotentialBlockSize`.
    fn occupancy(&self, kernel: &KernelFn, threads: u32, dynamic_shared: u32) -> Call<OccupancyQuery>;
}

impl Nvrtc for Device {
    fn compile(&self, source: &Source) -> Call<Compile> {
        Call::new(self, Compile::new(self, source), [])
    }

    fn launch(&self, kernel: &KernelFn) -> Call<Launch> {
        Call::new(self, Launch::new(kernel), [kernel.program().image().view()])
    }

    fn occupancy(&self, kernel: &KernelFn, threads: u32, dynamic_shared: u32) -> Call<OccupancyQuery> {
        let query = OccupancyQuery::new(kernel, threads, dynamic_shared);
        Call::new(self, query, [kernel.program().image().view()])
    }
}

mod sealed {
    pub trait Device {}
    impl Device for atomr_cuda_core::Device {}
}
