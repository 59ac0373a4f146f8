//! What a device's actor understands.

use tokio::sync::{oneshot, watch};

use crate::dtype::{CudaDtype, DType};
use crate::error::{GpuError, Result};
use crate::memory::{GpuRef, HostBuf};
use crate::operation::Operation;
use crate::worker::Link;

use super::call::{Call, Request};
use super::children::KernelChildren;
use super::handle::Device;
use super::load::DeviceLoad;

/// Where a reply goes.
pub type Reply<T> = oneshot::Sender<Result<T>>;

/// A message to a device. Every reply is answered, with a value or a typed error.
pub enum DeviceMsg {
    /// An operation of any library, an allocation or a copy.
    Operation(Box<dyn Dispatch>),
    /// The raw CUDA context; `None` unless the device runs on CUDA in `Isolation::Thread` and is ready.
    SnapshotContext(oneshot::Sender<Option<RawContext>>),
    /// The raw CUDA stream; `None` as for the context.
    SnapshotStream(oneshot::Sender<Option<RawStream>>),
    /// The library actors.
    SnapshotChildren(oneshot::Sender<KernelChildren>),
    /// A receiver of the generation, which rises with every incarnation of the compute side.
    WatchGeneration(oneshot::Sender<watch::Receiver<u64>>),
    /// The device's load.
    Stats(oneshot::Sender<DeviceLoad>),
    /// Finish what is queued, then end.
    Shutdown(oneshot::Sender<()>),
    /// The device's own events.
    #[doc(hidden)]
    Internal(Event),
}

/// The address of a `CUcontext` of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawContext(pub u64);

/// The address of a `CUstream` of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStream(pub u64);

/// What happens to a device from inside.
#[doc(hidden)]
pub enum Event {
    /// Begin: start the first worker.
    #[allow(private_interfaces)]
    Start,
    /// A worker was started, or could not be.
    #[allow(private_interfaces)]
    Launched(Result<Box<Link>>),
    /// A worker is gone.
    #[allow(private_interfaces)]
    Lost { link: u64, error: GpuError },
    /// Try to start a worker again.
    #[allow(private_interfaces)]
    Retry,
    /// The queue has drained, or has had its time: end now.
    #[allow(private_interfaces)]
    Finish,
}

/// A request that a device can carry out, whatever its types.
pub trait Dispatch: Send {
    /// The operation's name.
    fn name(&self) -> &'static str;
    /// The element type it was made for, where it is one.
    fn dtype(&self) -> Option<DType>;
    /// Carries it out; the reply is given in any case.
    fn dispatch(self: Box<Self>, device: &Device);
}

impl<O: Operation> Dispatch for Request<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn dtype(&self) -> Option<DType> {
        self.buffers().first().map(crate::memory::View::dtype)
    }

    fn dispatch(self: Box<Self>, _device: &Device) {
        self.serve();
    }
}

type Work<R> = Box<dyn FnOnce(&Device, Reply<R>) + Send>;

/// A typed request of the device itself.
struct Typed<R> {
    name: &'static str,
    dtype: DType,
    work: Option<(Work<R>, Reply<R>)>,
}

impl<R: Send + 'static> Typed<R> {
    fn message<T: CudaDtype>(
        name: &'static str,
        reply: Reply<R>,
        work: impl FnOnce(&Device, Reply<R>) + Send + 'static,
    ) -> DeviceMsg {
        DeviceMsg::Operation(Box::new(Typed { name, dtype: T::DTYPE, work: Some((Box::new(work), reply)) }))
    }
}

impl<R: Send + 'static> Dispatch for Typed<R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }

    fn dispatch(mut self: Box<Self>, device: &Device) {
        if let Some((work, reply)) = self.work.take() {
            work(device, reply);
        }
    }
}

impl<R> Drop for Typed<R> {
    fn drop(&mut self) {
        if let Some((_, reply)) = self.work.take() {
            // Whoever asked may not wait any more.
            let _ = reply.send(Err(GpuError::ShutDown { device: "whose actor ended".into() }));
        }
    }
}

impl DeviceMsg {
    /// A library's operation.
    pub fn run<O: Operation>(call: Call<O>, reply: Reply<O::Output>) -> Self {
        DeviceMsg::Operation(Box::new(Request::with_reply(call, reply)))
    }

    /// Allocates `len` elements.
    pub fn alloc<T: CudaDtype>(len: usize, reply: Reply<GpuRef<T>>) -> Self {
        Typed::message::<T>("core.alloc", reply, move |device, reply| match device.try_alloc::<T>(len) {
            Ok(Some(buffer)) => drop(reply.send(Ok(buffer))),
            Err(error) => drop(reply.send(Err(error))),
            Ok(None) => {
                let device = device.clone();
                tokio::spawn(async move { drop(reply.send(device.alloc::<T>(len).await)) });
            }
        })
    }

    /// Copies device memory to the host; the buffer comes back in the reply.
    pub fn copy_to_host<T: CudaDtype>(source: GpuRef<T>, host: HostBuf<T>, reply: Reply<HostBuf<T>>) -> Self {
        Typed::message::<T>("core.copy_to_host", reply, move |device, reply| {
            device.copy_to_host(&source, host).reply_to(reply);
        })
    }

    /// Copies host memory to the device; the buffer comes back in the reply.
    pub fn copy_from_host<T: CudaDtype>(host: HostBuf<T>, destination: GpuRef<T>, reply: Reply<HostBuf<T>>) -> Self {
        Typed::message::<T>("core.copy_from_host", reply, move |device, reply| {
            device.copy_from_host(host, &destination).reply_to(reply);
        })
    }

    /// Copies between two buffers of the device.
    pub fn copy<T: CudaDtype>(source: GpuRef<T>, destination: GpuRef<T>, reply: Reply<()>) -> Self {
        Typed::message::<T>("core.copy", reply, move |device, reply| device.copy(&source, &destination).reply_to(reply))
    }

    /// Sets every element to `value`.
    pub fn fill<T: CudaDtype>(destination: GpuRef<T>, value: T, reply: Reply<()>) -> Self {
        Typed::message::<T>("core.fill", reply, move |device, reply| device.fill(&destination, value).reply_to(reply))
    }
}

/// The dtype-enumerated names of an older interface, as constructors of the typed messages.
#[allow(non_snake_case)]
pub mod legacy {
    use super::*;

    macro_rules! legacy {
        ($($rust:ty: $allocate:ident $to_host:ident $from_host:ident,)*) => {
            $(
                #[doc = concat!("`DeviceMsg::alloc::<", stringify!($rust), ">`.")]
                #[deprecated(note = "use `DeviceMsg::alloc`")]
                pub fn $allocate(len: usize, reply: Reply<GpuRef<$rust>>) -> DeviceMsg {
                    DeviceMsg::alloc(len, reply)
                }

                #[doc = concat!("`DeviceMsg::copy_to_host::<", stringify!($rust), ">`.")]
                #[deprecated(note = "use `DeviceMsg::copy_to_host`")]
                pub fn $to_host(source: GpuRef<$rust>, host: HostBuf<$rust>, reply: Reply<HostBuf<$rust>>) -> DeviceMsg {
                    DeviceMsg::copy_to_host(source, host, reply)
                }

                #[doc = concat!("`DeviceMsg::copy_from_host::<", stringify!($rust), ">`.")]
                #[deprecated(note = "use `DeviceMsg::copy_from_host`")]
                pub fn $from_host(host: HostBuf<$rust>, destination: GpuRef<$rust>, reply: Reply<HostBuf<$rust>>) -> DeviceMsg {
                    DeviceMsg::copy_from_host(host, destination, reply)
                }
            )*
        };
    }

    legacy! {
        f32: AllocateF32 CopyToHostF32 CopyFromHostF32,
        f64: AllocateF64 CopyToHostF64 CopyFromHostF64,
        i32: AllocateI32 CopyToHostI32 CopyFromHostI32,
        u32: AllocateU32 CopyToHostU32 CopyFromHostU32,
        i64: AllocateI64 CopyToHostI64 CopyFromHostI64,
        u64: AllocateU64 CopyToHostU64 CopyFromHostU64,
        i8: AllocateI8 CopyToHostI8 CopyFromHostI8,
        u8: AllocateU8 CopyToHostU8 CopyFromHostU8,
        crate::dtype::f16: AllocateF16 CopyToHostF16 CopyFromHostF16,
        crate::dtype::bf16: AllocateBf16 CopyToHostBf16 CopyFromHostBf16,
    }
}
