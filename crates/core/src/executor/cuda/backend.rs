//! The context, its streams, and the loop's requests carried out on them.

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUevent_wait_flags, CUresult, CUstream,
    CUstream_flags, CUstreamWriteValue_flags,
};
use lru::LruCache;
use smallvec::SmallVec;

use crate::error::{GpuError, Result};
use crate::executor::backend::{
    Backend, BufferDesc, Frame, MAX_STREAMS, Recent, SCRATCH_SEGMENT, Segments, SharedPage, StartConfig, WorkerInfo,
};
use crate::executor::{SideTask, Step};
use crate::graph::{GraphLaunch, record};
use crate::operation::{EnabledLibraries, LibraryId};
use crate::registry;

use super::call::CudaBuffer;
use super::core_ops;
use super::driver::{check_driver, device_count};
use super::graph::{Capture, CapturedGraph};
use super::scratch::{Scratch, memory_info};
use super::segments::{ContextPtr, CudaSegments, Place, register};
use super::{CudaCall, CudaLibrary, CudaSetup};

/// Captured graphs that are kept.
const GRAPHS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// The halves of the linked and enabled libraries, or why there is none.
type Libraries = Vec<(LibraryId, Result<Box<dyn CudaLibrary>>)>;

struct Stream {
    raw: CUstream,
    /// Marks what another stream has to wait for.
    event: CUevent,
}

pub(crate) struct CudaBackend {
    context: ContextPtr,
    setup: CudaSetup,
    streams: Vec<Stream>,
    /// Keeps the registered page mapped.
    page: SharedPage,
    page_base: CUdeviceptr,
    segments: Arc<CudaSegments>,
    granularity: u64,
    libraries: Libraries,
    scratch: Scratch,
    recent: Recent<Place>,
    /// Captured graphs, by graph and stream.
    graphs: LruCache<(u64, u8), CapturedGraph>,
}

impl CudaBackend {
    pub fn new(config: &StartConfig, page: SharedPage) -> Result<Self> {
        let count = device_count()?;
        if config.ordinal as usize >= count {
            let reason = format!("{} is not below {count}, the number of CUDA devices", config.ordinal);
            return Err(GpuError::invalid("Device::open", "ordinal", reason));
        }
        let mut device = 0;
        // SAFETY: the place that is written outlives the call.
        check_driver("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, config.ordinal as i32) })?;
        let mut raw = std::ptr::null_mut();
        // The primary context: in `Isolation::Thread` the application shares it; in a worker process
        // it is the only one.
        // SAFETY: the place that is written outlives the call.
        check_driver("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        let context = ContextPtr(raw);
        context.make_current()?;
        let setup = describe(device)?;
        let streams = make_streams(config.streams)?;
        let page_base = register(&page.mapping)?;
        let segments = Arc::new(CudaSegments::new(context, device));
        let granularity = segments.granularity()?;
        let enabled = EnabledLibraries::from_bits_retain(config.libraries);
        let linked = registry::linked().into_iter().filter(|entry| enabled.contains(entry.id.bit()));
        let libraries = linked.map(|entry| {
            let missing = || GpuError::Unsupported {
                operation: entry.name.into(),
                executor: "cuda".into(),
                reason: "the library has no CUDA half".into(),
            };
            (entry.id, entry.cuda.ok_or_else(missing).and_then(|make| make(&setup)))
        });
        let libraries = libraries.collect();
        let scratch = Scratch::new(device)?;
        Ok(CudaBackend {
            context,
            setup,
            streams,
            page,
            page_base,
            segments,
            granularity,
            libraries,
            scratch,
            recent: Recent::default(),
            graphs: LruCache::new(GRAPHS),
        })
    }

    fn stream(&self, index: u8) -> Result<&Stream> {
        let missing = || GpuError::Protocol { side: "front".into(), reason: format!("there is no stream {index}") };
        self.streams.get(index as usize).ok_or_else(missing)
    }

    fn segment(&mut self, id: u32) -> Result<Place> {
        let segments = &self.segments;
        self.recent.get(id, segments.dropped(), || segments.wait_for(id)).copied()
    }

    /// Scratch memory of zeros, for a rehearsal.
    fn zeroed(&mut self, bytes: u64, stream: u8) -> Result<CUdeviceptr> {
        let stream = self.stream(stream)?.raw;
        let ptr = self.scratch.get(stream, bytes)?;
        // SAFETY: the range was just allocated with `bytes`.
        check_driver("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(ptr, 0, bytes as usize, stream) })?;
        Ok(ptr)
    }

    /// Where buffers lie in this process.
    fn resolve(&mut self, descs: &[BufferDesc], stream: u8) -> Result<SmallVec<[CudaBuffer; 4]>> {
        let mut buffers = SmallVec::new();
        for desc in descs {
            if desc.segment == SCRATCH_SEGMENT {
                let ptr = self.zeroed(desc.bytes, stream)?;
                let (bytes, dtype, access) = (desc.bytes, desc.dtype, desc.access);
                buffers.push(CudaBuffer { ptr, host: std::ptr::null(), bytes, dtype, access });
                continue;
            }
            let place = self.segment(desc.segment)?;
            if desc.offset.checked_add(desc.bytes).is_none_or(|end| end > place.bytes) {
                let reason = format!("bytes {}+{} of segment {}", desc.offset, desc.bytes, desc.segment);
                return Err(GpuError::Protocol { side: "front".into(), reason });
            }
            buffers.push(CudaBuffer {
                ptr: place.base + desc.offset,
                host: match place.host.is_null() {
                    true => place.host,
                    // SAFETY: the offset lies inside the segment's mapping, as just checked.
                    false => unsafe { place.host.add(desc.offset as usize) },
                },
                bytes: desc.bytes,
                dtype: desc.dtype,
                access: desc.access,
            });
        }
        Ok(buffers)
    }

    fn run(&mut self, frame: &Frame, reply: &mut Vec<u8>) -> Result<Step> {
        let stream_index = frame.stream.unwrap_or(0);
        let stream = self.stream(stream_index)?.raw;
        if frame.library == LibraryId::CORE && frame.code == GraphLaunch::CODE {
            return self.launch_graph(frame, stream, stream_index);
        }
        let buffers = self.resolve(&frame.buffers, stream_index)?;
        let mut call = CudaCall {
            library: frame.library,
            code: frame.code,
            params: &frame.params,
            buffers: &buffers,
            stream,
            stream_index: usize::from(stream_index),
            reply_ptr: frame.reply_at.map(|at| self.page_base + u64::from(at)),
            reply: Vec::new(),
            scratch: &mut self.scratch,
        };
        let step = dispatch(&mut self.libraries, &mut call);
        *reply = call.reply;
        self.scratch.release()?;
        step
    }

    /// Launches a graph, captured first where it is new or has changed.
    fn launch_graph(&mut self, frame: &Frame, stream: CUstream, stream_index: u8) -> Result<Step> {
        let operation: GraphLaunch = postcard::from_bytes(&frame.params).map_err(|e| GpuError::Protocol {
            side: "front".into(),
            reason: format!("a launch does not decode: {e}"),
        })?;
        let [encoded, descs @ ..] = frame.buffers.as_slice() else {
            return Err(GpuError::Protocol { side: "front".into(), reason: "a graph without operations".into() });
        };
        let key = (operation.id, stream_index);
        let places = self.resolve(descs, stream_index)?;
        let places: Vec<CUdeviceptr> = places.iter().map(|buffer| buffer.ptr).collect();
        if let Some(known) = self.graphs.get(&key)
            && known.is(operation.version, &places)
        {
            return known.launch(stream).map(|()| Step::Done);
        }
        let blob = self.resolve(std::slice::from_ref(encoded), stream_index)?;
        let bytes = blob[0].host_bytes().ok_or_else(|| GpuError::Protocol {
            side: "front".into(),
            reason: "a graph that is not in host memory".into(),
        })?;
        let nodes = record::decode(bytes)?;
        let capture = Capture::begin(stream)?;
        for (at, node) in nodes.iter().enumerate() {
            let step = node.resolve(descs).and_then(|descs| self.resolve(&descs, stream_index)).and_then(|buffers| {
                let mut call = CudaCall {
                    library: node.library,
                    code: node.code,
                    params: &node.params,
                    buffers: &buffers,
                    stream,
                    stream_index: usize::from(stream_index),
                    reply_ptr: None,
                    reply: Vec::new(),
                    scratch: &mut self.scratch,
                };
                let step = dispatch(&mut self.libraries, &mut call)?;
                self.scratch.release()?;
                Ok(step)
            });
            match step {
                Ok(Step::Done) => {}
                // The capture is given up; with the task done, the launch begins anew.
                Ok(later) => return Ok(later),
                Err(error) => {
                    self.scratch.forget();
                    let operation = registry::operation_name(node.library, node.code);
                    return Err(GpuError::Graph { node: at, operation, error: Box::new(error) });
                }
            }
        }
        let captured = capture.finish(operation.version, places, self.graphs.pop(&key))?;
        captured.launch(stream)?;
        self.graphs.put(key, captured);
        Ok(Step::Done)
    }
}

/// Hands a call to its library's half.
fn dispatch(libraries: &mut Libraries, call: &mut CudaCall<'_>) -> Result<Step> {
    if call.library == LibraryId::CORE {
        return core_ops::enqueue(call);
    }
    match libraries.iter_mut().find(|(id, _)| *id == call.library) {
        Some((_, Ok(library))) => library.enqueue(call),
        Some((_, Err(error))) => Err(error.clone()),
        None => Err(GpuError::LibraryUnavailable {
            operation: registry::operation_name(call.library, call.code),
            library: call.library.to_string(),
            reason: "it is not linked into the worker, or not enabled".into(),
        }),
    }
}

/// Streams of normal priority, then those of the highest that the device has.
fn make_streams((normal, high): (u8, u8)) -> Result<Vec<Stream>> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: the places that are written outlive the call.
    let status = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    check_driver("cuCtxGetStreamPriorityRange", status)?;
    let priorities = (0..normal.max(1)).map(|_| least).chain((0..high).map(|_| greatest));
    priorities.take(MAX_STREAMS).map(Stream::new).collect()
}

impl Stream {
    fn new(priority: i32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place that is written outlives the call.
        let status = unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) };
        check_driver("cuStreamCreateWithPriority", status)?;
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: as above.
        check_driver("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Stream { raw, event })
    }
}

impl Backend for CudaBackend {
    fn info(&self) -> WorkerInfo {
        let (free_bytes, total_bytes) = memory_info().unwrap_or((0, 0));
        let version = |library: &Result<Box<dyn CudaLibrary>>| match library {
            Ok(library) => Ok(library.version()),
            Err(error) => Err(error.clone()),
        };
        let (major, minor) = self.setup.compute_capability;
        WorkerInfo {
            device_name: self.setup.device_name.to_string(),
            compute_capability: (major as u32, minor as u32),
            granularity: self.granularity,
            libraries: self.libraries.iter().map(|(id, library)| (id.index(), version(library))).collect(),
            free_bytes,
            total_bytes,
        }
    }

    fn enqueue(&mut self, frame: &Frame, reply: &mut Vec<u8>) -> Result<Step> {
        self.run(frame, reply).map_err(|error| match self.sweep() {
            // Whatever the library said, the context is gone.
            Err(sticky) if sticky.is_sticky() => sticky,
            _ => error,
        })
    }

    fn rehearse(&mut self, frame: &Frame) -> Result<Step> {
        let step = self.enqueue(frame, &mut Vec::new());
        self.scratch.release()?;
        step
    }

    fn order(&mut self, stream: u8, after: u8) -> Result<()> {
        let (waiting, awaited) = (self.stream(stream)?, self.stream(after)?);
        // SAFETY: event and stream are alive and of one context.
        check_driver("cuEventRecord", unsafe { sys::cuEventRecord(awaited.event, awaited.raw) })?;
        let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: as above.
        check_driver("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(waiting.raw, awaited.event, flags) })
    }

    fn publish(&mut self, stream: u8, seq: u64) -> Result<()> {
        let at = self.page_base + self.page.counters_at as u64 + 64 * u64::from(stream);
        let flags = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the address lies in the registered page, which stays mapped while `self` lives.
        let status = unsafe { sys::cuStreamWriteValue64_v2(self.stream(stream)?.raw, at, seq, flags) };
        check_driver("cuStreamWriteValue64_v2", status)
    }

    fn sweep(&mut self) -> Result<()> {
        for stream in &self.streams {
            // SAFETY: the stream is alive.
            match unsafe { sys::cuStreamQuery(stream.raw) } {
                CUresult::CUDA_ERROR_NOT_READY => {}
                status => check_driver("cuStreamQuery", status)?,
            }
        }
        Ok(())
    }

    fn segments(&self) -> Arc<dyn Segments> {
        self.segments.clone()
    }

    fn side_task(&self, task: SideTask) -> SideTask {
        let context = self.context;
        Box::new(move || {
            context.make_current()?;
            task()
        })
    }

    fn raw_handles(&self) -> Option<(u64, Vec<u64>)> {
        Some((self.context.0 as u64, self.streams.iter().map(|stream| stream.raw as u64).collect()))
    }
}

/// What the driver says of a device.
fn describe(device: i32) -> Result<CudaSetup> {
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the place that is written outlives the call.
        check_driver("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok::<i32, GpuError>(value)
    };
    let mut name = [0; 128];
    // SAFETY: the array has the length that is given.
    check_driver("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) })?;
    // SAFETY: the driver has written a terminated string into the array.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
    let mut driver_version = 0;
    // SAFETY: the place that is written outlives the call.
    check_driver("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut driver_version) })?;
    if attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1)? == 0
        && attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? == 0
    {
        let reason = format!("{name} cannot write 64-bit values in stream order (compute capability 7.0 can)");
        return Err(GpuError::Unsupported { operation: "Device::open".into(), executor: "cuda".into(), reason });
    }
    use CUdevice_attribute as Attribute;
    Ok(CudaSetup {
        ordinal: device,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        device_name: Arc::from(&*name),
        driver_version,
    })
}
