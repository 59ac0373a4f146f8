//! One launch of a kernel.

use atomr_cuda_core::{
    Access, Argument, Arguments, BufferShape, Call, CudaDtype, GpuError, GpuRef, LibraryId, Operation, Result,
};
use bytemuck::NoUninit;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::compiler::LaunchConfig;

use super::LIBRARY;
use super::program::{KernelFn, ProgramKey};

/// Launches a kernel. It carries a key of its program and the values of its arguments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    pub(crate) program: ProgramKey,
    pub(crate) kernel: u32,
    /// Grid, block, cluster, shared memory.
    pub config: LaunchConfig,
    pub(crate) values: SmallVec<[Value; 8]>,
    /// What it is checked against, in the front.
    #[serde(skip)]
    checked: Option<KernelFn>,
}

/// One argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// The address of the next buffer, which is read.
    Read,
    /// The address of the next buffer, every element of which is written.
    Write,
    /// The address of the next buffer, which is read and written.
    ReadWrite,
    /// Plain data.
    Plain(SmallVec<[u8; 16]>),
}

impl Value {
    fn access(&self) -> Option<Access> {
        match self {
            Value::Read => Some(Access::Read),
            Value::Write => Some(Access::Write),
            Value::ReadWrite => Some(Access::ReadWrite),
            Value::Plain(_) => None,
        }
    }

    /// Bytes that the kernel's parameter must have.
    pub fn bytes(&self) -> usize {
        match self {
            Value::Plain(bytes) => bytes.len(),
            _ => size_of::<u64>(),
        }
    }
}

/// Extents in x, y and z; what is not given is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim(pub [u32; 3]);

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Dim([x, 1, 1])
    }
}

impl From<(u32, u32)> for Dim {
    fn from((x, y): (u32, u32)) -> Self {
        Dim([x, y, 1])
    }
}

impl From<(u32, u32, u32)> for Dim {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Dim([x, y, z])
    }
}

/// Arguments and extents of a launch. Arguments are given in the kernel's order.
///
/// The kernel must keep to what is said of its buffers: on that depend the order of operations and
/// what is known to be lost when a worker dies. A buffer that is written may not overlap another
/// argument. Device addresses cannot be put into plain data: they change from worker to worker.
pub trait LaunchOptions: Sized {
    /// A pointer to a buffer that the kernel reads.
    fn read<T: CudaDtype>(self, buffer: &GpuRef<T>) -> Self {
        self.buffer(buffer, Access::Read)
    }

    /// A pointer to a buffer every element of which the kernel writes, without reading any before.
    fn write<T: CudaDtype>(self, buffer: &GpuRef<T>) -> Self {
        self.buffer(buffer, Access::Write)
    }

    /// A pointer to a buffer that the kernel reads and writes, or writes in part.
    fn read_write<T: CudaDtype>(self, buffer: &GpuRef<T>) -> Self {
        self.buffer(buffer, Access::ReadWrite)
    }

    /// A pointer to a buffer, used as said.
    fn buffer<T: CudaDtype>(self, buffer: &GpuRef<T>, access: Access) -> Self;

    /// A number: `float` is `f32`, `int` is `i32`, `size_t` is `u64`, `__half` is `f16`.
    fn scalar<T: CudaDtype>(self, value: T) -> Self {
        self.plain(value)
    }

    /// Plain data with the layout of the kernel's parameter: a `#[repr(C)]` struct without padding.
    fn plain<T: NoUninit>(self, value: T) -> Self;

    /// Blocks: `(x, y, z)`, `(x, y)` or `x`.
    fn grid(self, blocks: impl Into<Dim>) -> Self;

    /// Threads of a block.
    fn block(self, threads: impl Into<Dim>) -> Self;

    /// Blocks of a cluster, which share their shared memory; each extent divides the grid's. At most
    /// 8 blocks, on some devices 16. From compute capability 9.0 on.
    fn cluster(self, blocks: impl Into<Dim>) -> Self;

    /// Bytes of `extern __shared__` memory, as many as the device has, also beyond 48 KiB.
    fn dynamic_shared(self, bytes: u32) -> Self;

    /// All blocks run at the same time, so that they may wait for one another (grid
    /// synchronisation). [`occupancy`](super::Nvrtc::occupancy) says how many there may be.
    fn cooperative(self) -> Self;
}

impl LaunchOptions for Call<Launch> {
    fn buffer<T: CudaDtype>(self, buffer: &GpuRef<T>, access: Access) -> Self {
        let value = match access {
            Access::Read => Value::Read,
            Access::Write => Value::Write,
            Access::ReadWrite => Value::ReadWrite,
        };
        self.map(|launch| launch.with(value)).with_buffer(buffer)
    }

    fn plain<T: NoUninit>(self, value: T) -> Self {
        let bytes = SmallVec::from_slice(bytemuck::bytes_of(&value));
        self.map(|launch| launch.with(Value::Plain(bytes)))
    }

    fn grid(self, blocks: impl Into<Dim>) -> Self {
        self.map(|launch| launch.configure(|config| config.grid = blocks.into().0))
    }

    fn block(self, threads: impl Into<Dim>) -> Self {
        self.map(|launch| launch.configure(|config| config.block = threads.into().0))
    }

    fn cluster(self, blocks: impl Into<Dim>) -> Self {
        self.map(|launch| launch.configure(|config| config.cluster = Some(blocks.into().0)))
    }

    fn dynamic_shared(self, bytes: u32) -> Self {
        self.map(|launch| launch.configure(|config| config.dynamic_shared = bytes))
    }

    fn cooperative(self) -> Self {
        self.map(|launch| launch.configure(|config| config.cooperative = true))
    }
}

impl Launch {
    pub(crate) fn new(kernel: &KernelFn) -> Self {
        Launch {
            program: kernel.program().key(),
            kernel: kernel.index(),
            config: LaunchConfig::default(),
            values: SmallVec::new(),
            checked: Some(kernel.clone()),
        }
    }

    fn with(mut self, value: Value) -> Self {
        self.values.push(value);
        self
    }

    fn configure(mut self, change: impl FnOnce(&mut LaunchConfig)) -> Self {
        change(&mut self.config);
        self
    }

    fn invalid(&self, argument: &str, reason: String) -> GpuError {
        let kernel = self.checked.as_ref().map_or("the kernel", |kernel| &kernel.info().name);
        GpuError::invalid(Self::NAME, argument, format!("{kernel}: {reason}"))
    }

    /// As many arguments as parameters, each of its size.
    fn check_values(&self, parameters: &[(u32, u32)]) -> Result<()> {
        if self.values.len() != parameters.len() || self.values.len() > NAMES.len() {
            let reason = format!(
                "it has {} parameters, {} arguments were given; at most {}",
                parameters.len(),
                self.values.len(),
                NAMES.len()
            );
            return Err(self.invalid("arguments", reason));
        }
        for (i, (value, (_, size))) in self.values.iter().zip(parameters).enumerate() {
            if value.bytes() != *size as usize {
                let reason = format!("the parameter has {size} bytes, the argument {}", value.bytes());
                return Err(self.invalid(NAMES[i], reason));
            }
        }
        Ok(())
    }

    /// Extents that the kernel and the device can have.
    fn check_config(&self, kernel: &KernelFn) -> Result<()> {
        let (info, limits, config) = (kernel.info(), kernel.program().limits(), &self.config);
        let within = |argument: &str, extents: [u32; 3], most: [u32; 3]| match extents
            .iter()
            .zip(&most)
            .all(|(extent, most)| (1..=*most).contains(extent))
        {
            true => Ok(()),
            false => Err(self.invalid(argument, format!("{extents:?}; each from 1, at most {most:?}"))),
        };
        within("grid", config.grid, limits.max_grid)?;
        within("block", config.block, limits.max_block)?;
        let threads = volume(config.block);
        let most = info.attributes.max_threads.min(limits.max_threads);
        if threads > u128::from(most) {
            return Err(self.invalid("block", format!("{threads} threads; at most {most}")));
        }
        if config.dynamic_shared > info.max_dynamic_shared {
            let reason = format!(
                "{} bytes; at most {} beside the {} that are static",
                config.dynamic_shared, info.max_dynamic_shared, info.attributes.static_shared
            );
            return Err(self.invalid("dynamic_shared", reason));
        }
        if config.cooperative && !limits.cooperative {
            return Err(self.invalid("cooperative", "the device has no cooperative launches".into()));
        }
        let Some(cluster) = config.cluster else { return Ok(()) };
        if !limits.clusters {
            return Err(self.invalid("cluster", "the device has no clusters (compute capability 9.0 has)".into()));
        }
        let divides =
            cluster.iter().zip(&config.grid).all(|(blocks, grid)| *blocks > 0 && grid.is_multiple_of(*blocks));
        if !divides || volume(cluster) > 16 {
            let reason = format!("{cluster:?} blocks, at most 16 in all, must divide the grid's {:?}", config.grid);
            return Err(self.invalid("cluster", reason));
        }
        Ok(())
    }
}

fn volume(extents: [u32; 3]) -> u128 {
    extents.into_iter().map(u128::from).product()
}

impl Operation for Launch {
    type Output = ();
    const NAME: &'static str = "nvrtc.launch";
    const LIBRARY: LibraryId = LIBRARY;
    const CODE: u16 = 1;
    /// What a kernel of the user's does with zeros is not known.
    const REHEARSE: bool = false;

    fn arguments(&self) -> Arguments {
        let mut arguments: Arguments = [Argument::read("program")].into_iter().collect();
        for (i, value) in self.values.iter().enumerate() {
            if let Some(access) = value.access() {
                arguments.push(Argument { name: NAMES.get(i).unwrap_or(&"argument"), access });
            }
        }
        arguments
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        let Some(kernel) = &self.checked else {
            return Err(GpuError::invalid(Self::NAME, "kernel", "the operation was not made by `Nvrtc::launch`"));
        };
        self.check_values(&kernel.info().attributes.parameters)?;
        self.check_config(kernel)
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

macro_rules! names {
    ($($number:literal)*) => { [$(concat!("argument ", $number)),*] };
}

/// Arguments by their place, from 0.
const NAMES: [&str; 64] = names![
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
];
