//! The host executor: streams are carried out in the order of the ring, on the enqueue thread.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::error::{GpuError, Result};
use crate::executor::backend::{Backend, BufferDesc, Frame, Recent, Segments, SharedPage, StartConfig, WorkerInfo};
use crate::executor::{HostLibrary, Step};
use crate::graph::{GraphLaunch, record};
use crate::memory::{Mapping, Space, sealed_memfd};
use crate::operation::{EnabledLibraries, LibraryId};
use crate::registry;

use super::HostSetup;
use super::call::{HostBuffer, HostCall};
use super::core_ops;

/// Host segments are multiples of a page.
const GRANULARITY: u64 = 4096;

pub(crate) struct HostBackend {
    page: SharedPage,
    segments: Arc<HostSegments>,
    libraries: Vec<(LibraryId, Result<Box<dyn HostLibrary>>)>,
    recent: Recent<Arc<Mapping>>,
    /// The graph that waits for a side task, by ticket, and the operation that it goes on with.
    paused: Option<(u64, usize)>,
}

impl HostBackend {
    pub fn new(config: &StartConfig, page: SharedPage) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let setup = HostSetup { threads };
        let enabled = EnabledLibraries::from_bits_retain(config.libraries);
        let mut libraries = Vec::new();
        for entry in registry::linked().into_iter().filter(|entry| enabled.contains(entry.id.bit())) {
            let library = match entry.host {
                Some(make) => make(&setup),
                None => Err(GpuError::Unsupported {
                    operation: entry.name.into(),
                    executor: "host".into(),
                    reason: "the library has no host half".into(),
                }),
            };
            libraries.push((entry.id, library));
        }
        Ok(HostBackend { page, segments: Arc::default(), libraries, recent: Recent::default(), paused: None })
    }

    fn counter(&self, stream: u8) -> &AtomicU64 {
        let at = self.page.counters_at + 64 * stream as usize;
        // SAFETY: the page holds `MAX_STREAMS` counters, 64 bytes apart, from `counters_at` on; the
        // loop refuses higher streams; counters are only ever accessed as atomics.
        unsafe { &*self.page.mapping.as_ptr().add(at).cast::<AtomicU64>() }
    }

    fn mapping(&mut self, segment: u32) -> Result<&Arc<Mapping>> {
        let segments = &self.segments;
        self.recent.get(segment, segments.dropped.load(Ordering::Acquire), || segments.wait_for(segment))
    }

    /// Carries out one operation.
    fn run(
        &mut self,
        library: LibraryId,
        code: u16,
        params: &[u8],
        descs: &[BufferDesc],
        reply: &mut Vec<u8>,
    ) -> Result<Step> {
        // The mappings stay alive beside the buffers that point into them.
        let mut mapped: SmallVec<[Arc<Mapping>; 4]> = SmallVec::new();
        let mut buffers: SmallVec<[HostBuffer; 4]> = SmallVec::new();
        for desc in descs {
            let mapping = self.mapping(desc.segment)?.clone();
            let end = desc.offset.checked_add(desc.bytes).filter(|end| *end <= mapping.len() as u64);
            if end.is_none() {
                let reason = format!("bytes {}+{} of segment {}", desc.offset, desc.bytes, desc.segment);
                return Err(GpuError::Protocol { side: "front".into(), reason });
            }
            // SAFETY: the offset lies inside the mapping, as just checked.
            let ptr = unsafe { mapping.as_ptr().add(desc.offset as usize) };
            buffers.push(HostBuffer { ptr, bytes: desc.bytes as usize, dtype: desc.dtype, access: desc.access });
            mapped.push(mapping);
        }
        // SAFETY: the ranges lie inside live mappings; the enqueue thread is the only one of this
        // process that touches device segments, and the front does not touch a buffer in flight.
        let mut call = unsafe { HostCall::new(library, code, params, &buffers)? };
        let step = if library == LibraryId::CORE {
            core_ops::run(&mut call)?
        } else {
            match self.libraries.iter_mut().find(|(id, _)| *id == library) {
                Some((_, Ok(half))) => half.run(&mut call)?,
                Some((_, Err(error))) => return Err(error.clone()),
                None => {
                    return Err(GpuError::LibraryUnavailable {
                        operation: registry::operation_name(library, code),
                        library: library.to_string(),
                        reason: "it is not linked into the worker, or not enabled".into(),
                    });
                }
            }
        };
        *reply = call.into_reply();
        Ok(step)
    }

    /// Carries out a graph's operations one after the other.
    fn run_graph(&mut self, frame: &Frame) -> Result<Step> {
        let [encoded, buffers @ ..] = frame.buffers.as_slice() else {
            return Err(GpuError::Protocol { side: "front".into(), reason: "a graph without operations".into() });
        };
        let mapping = self.mapping(encoded.segment)?.clone();
        let end = encoded.offset.checked_add(encoded.bytes).filter(|end| *end <= mapping.len() as u64);
        end.ok_or_else(|| GpuError::Protocol { side: "front".into(), reason: "a graph outside its segment".into() })?;
        // SAFETY: the range lies inside the live mapping, as just checked; the front keeps the bytes of
        // a graph unwritten while it is in flight.
        let bytes = unsafe {
            std::slice::from_raw_parts(mapping.as_ptr().add(encoded.offset as usize), encoded.bytes as usize)
        };
        let nodes = record::decode(bytes)?;
        // Where an operation had something slow to do first, the graph goes on from there.
        let begin = match self.paused.take() {
            Some((ticket, node)) if ticket == frame.ticket => node,
            _ => 0,
        };
        for (at, node) in nodes.iter().enumerate().skip(begin) {
            let step = node
                .resolve(buffers)
                .and_then(|descs| self.run(node.library, node.code, &node.params, &descs, &mut Vec::new()));
            match step {
                Ok(Step::Done) => {}
                Ok(later) => {
                    self.paused = Some((frame.ticket, at));
                    return Ok(later);
                }
                Err(error) => {
                    let operation = registry::operation_name(node.library, node.code);
                    return Err(GpuError::Graph { node: at, operation, error: Box::new(error) });
                }
            }
        }
        Ok(Step::Done)
    }
}

impl Backend for HostBackend {
    fn info(&self) -> WorkerInfo {
        let (free_bytes, total_bytes) = self.segments.memory().unwrap_or((0, 0));
        let version = |result: &Result<Box<dyn HostLibrary>>| match result {
            Ok(_) => Ok("host half".to_string()),
            Err(error) => Err(error.clone()),
        };
        WorkerInfo {
            device_name: "host processor".into(),
            compute_capability: (0, 0),
            granularity: GRANULARITY,
            libraries: self.libraries.iter().map(|(id, library)| (id.index(), version(library))).collect(),
            free_bytes,
            total_bytes,
        }
    }

    fn enqueue(&mut self, frame: &Frame, reply: &mut Vec<u8>) -> Result<Step> {
        if frame.library == LibraryId::CORE && frame.code == GraphLaunch::CODE {
            return self.run_graph(frame);
        }
        self.run(frame.library, frame.code, &frame.params, &frame.buffers, reply)
    }

    fn order(&mut self, _stream: u8, _after: u8) -> Result<()> {
        // Everything taken from the ring so far has been carried out.
        Ok(())
    }

    fn publish(&mut self, stream: u8, seq: u64) -> Result<()> {
        self.counter(stream).store(seq, Ordering::Release);
        Ok(())
    }

    fn batch(&self) -> u32 {
        1
    }

    fn sweep(&mut self) -> Result<()> {
        Ok(())
    }

    fn segments(&self) -> Arc<dyn Segments> {
        self.segments.clone()
    }
}

/// The segments mapped into this process.
#[derive(Default)]
pub(crate) struct HostSegments {
    table: Mutex<HashMap<u32, Arc<Mapping>>>,
    arrived: Condvar,
    /// How many segments were unmapped so far.
    dropped: AtomicU64,
}

impl HostSegments {
    /// A segment's mapping; waits for the control thread if it is not there yet.
    fn wait_for(&self, id: u32) -> Result<Arc<Mapping>> {
        let until = Instant::now() + Duration::from_secs(5);
        let mut table = self.table.lock();
        loop {
            if let Some(mapping) = table.get(&id) {
                return Ok(mapping.clone());
            }
            if self.arrived.wait_until(&mut table, until).timed_out() {
                let reason = format!("segment {id} is not mapped");
                return Err(GpuError::Protocol { side: "front".into(), reason });
            }
        }
    }

    fn insert(&self, id: u32, fd: BorrowedFd<'_>, bytes: u64) -> Result<()> {
        let mapping = Arc::new(Mapping::new(fd, bytes as usize)?);
        self.table.lock().insert(id, mapping);
        self.arrived.notify_all();
        Ok(())
    }
}

impl Segments for HostSegments {
    fn create(&self, id: u32, bytes: u64) -> Result<OwnedFd> {
        let (free, total) = self.memory()?;
        if bytes > total {
            return Err(GpuError::OutOfMemory { requested: bytes, free, total, limited: false });
        }
        let fd = sealed_memfd("atomr-cuda-segment", bytes)?;
        self.insert(id, std::os::fd::AsFd::as_fd(&fd), bytes)?;
        Ok(fd)
    }

    fn map(&self, id: u32, _space: Space, bytes: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.insert(id, fd, bytes)
    }

    fn unmap(&self, id: u32) -> Result<()> {
        self.table.lock().remove(&id);
        self.dropped.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| GpuError::io("/proc/meminfo", e))?;
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kib| kib * 1024)
        };
        let missing = || GpuError::io("/proc/meminfo", rustix::io::Errno::INVAL);
        Ok((bytes("MemAvailable:").ok_or_else(missing)?, bytes("MemTotal:").ok_or_else(missing)?))
    }
}
