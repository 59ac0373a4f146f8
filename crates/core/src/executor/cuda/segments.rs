//! Memory segments: exportable device memory, and host memory registered with the driver.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUcontext, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType, CUresult,
};
use parking_lot::{Condvar, Mutex};

use crate::error::{GpuError, Result};
use crate::executor::backend::Segments;
use crate::memory::{Mapping, Space};

use super::driver::check_driver;
use super::scratch::memory_info;

const REGISTER_FLAGS: u32 = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;

/// A context as an address that other threads may make current.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContextPtr(pub CUcontext);

// SAFETY: a context may be current on any number of threads (CUDA driver API, contexts).
unsafe impl Send for ContextPtr {}
// SAFETY: as above.
unsafe impl Sync for ContextPtr {}

impl ContextPtr {
    /// Makes the context current on this thread.
    pub fn make_current(self) -> Result<()> {
        // SAFETY: the context lives as long as the worker.
        check_driver("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0) })
    }
}

/// Where a segment lies in this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub base: CUdeviceptr,
    pub bytes: u64,
    /// The first byte as the processor sees it; null for device memory.
    pub host: *const u8,
}

struct Mapped {
    base: CUdeviceptr,
    bytes: u64,
    /// The host mapping that is registered; `None` for device memory.
    host: Option<Mapping>,
}

/// The segments mapped into this process's context.
pub(super) struct CudaSegments {
    context: ContextPtr,
    device: i32,
    table: Mutex<HashMap<u32, Mapped>>,
    arrived: Condvar,
    dropped: AtomicU64,
}

impl CudaSegments {
    pub fn new(context: ContextPtr, device: i32) -> Self {
        CudaSegments { context, device, table: Mutex::default(), arrived: Condvar::new(), dropped: AtomicU64::new(0) }
    }

    fn properties(&self) -> CUmemAllocationProp {
        // SAFETY: the struct is plain data for which zero means "not asked for".
        let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        properties.location = self.location();
        properties
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    /// Segment sizes are multiples of this.
    pub fn granularity(&self) -> Result<u64> {
        let mut granularity = 0;
        let flag = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: both pointers are to live places.
        let status = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &self.properties(), flag) };
        check_driver("cuMemGetAllocationGranularity", status)?;
        Ok(granularity as u64)
    }

    /// Where a segment lies; waits for the control thread if it is not there yet.
    pub fn wait_for(&self, id: u32) -> Result<Place> {
        let until = Instant::now() + Duration::from_secs(5);
        let mut table = self.table.lock();
        loop {
            if let Some(mapped) = table.get(&id) {
                let host = mapped.host.as_ref().map_or(std::ptr::null(), |mapping| mapping.as_ptr().cast_const());
                return Ok(Place { base: mapped.base, bytes: mapped.bytes, host });
            }
            if self.arrived.wait_until(&mut table, until).timed_out() {
                let reason = format!("segment {id} is not mapped");
                return Err(GpuError::Protocol { side: "front".into(), reason });
            }
        }
    }

    /// How many segments were unmapped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Acquire)
    }

    fn insert(&self, id: u32, mapped: Mapped) {
        self.table.lock().insert(id, mapped);
        self.arrived.notify_all();
    }

    /// Maps `handle` at an address of its own, and drops the handle: the mapping keeps the memory.
    fn map_device(&self, id: u32, bytes: u64, handle: CUmemGenericAllocationHandle) -> Result<()> {
        let mut base = 0;
        let access =
            CUmemAccessDesc { location: self.location(), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: the place that is written outlives the call.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) };
        let mapped = check_driver("cuMemAddressReserve", reserved).and_then(|()| {
            // SAFETY: the range was just reserved and the handle has `bytes`.
            check_driver("cuMemMap", unsafe { sys::cuMemMap(base, bytes as usize, 0, handle, 0) })?;
            // SAFETY: the range was just mapped; the descriptor outlives the call.
            check_driver("cuMemSetAccess", unsafe { sys::cuMemSetAccess(base, bytes as usize, &access, 1) })
        });
        // SAFETY: the handle is owned here and not used afterwards.
        let released = check_driver("cuMemRelease", unsafe { sys::cuMemRelease(handle) });
        mapped.and(released)?;
        self.insert(id, Mapped { base, bytes, host: None });
        Ok(())
    }
}

impl Segments for CudaSegments {
    fn create(&self, id: u32, bytes: u64) -> Result<OwnedFd> {
        self.context.make_current()?;
        let mut handle = 0;
        // SAFETY: the places outlive the call.
        let status = unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &self.properties(), 0) };
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = memory_info()?;
            return Err(GpuError::OutOfMemory { requested: bytes, free, total, limited: false });
        }
        check_driver("cuMemCreate", status)?;
        let mut fd = -1i32;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind of handle the driver writes one `int`.
        let status = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0) };
        if let Err(error) = check_driver("cuMemExportToShareableHandle", status) {
            // SAFETY: the handle is owned here and not used afterwards.
            let _ = unsafe { sys::cuMemRelease(handle) };
            return Err(error);
        }
        // SAFETY: the driver gave this new descriptor to us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.map_device(id, bytes, handle)?;
        Ok(fd)
    }

    fn map(&self, id: u32, space: Space, bytes: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.context.make_current()?;
        if space == Space::Host {
            let mapping = Mapping::new(fd, bytes as usize)?;
            let base = register(&mapping)?;
            self.insert(id, Mapped { base, bytes, host: Some(mapping) });
            return Ok(());
        }
        let mut handle = 0;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let shared = fd.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this kind of handle the "pointer" is the descriptor's number.
        let status = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, shared, kind) };
        check_driver("cuMemImportFromShareableHandle", status)?;
        self.map_device(id, bytes, handle)
    }

    fn unmap(&self, id: u32) -> Result<()> {
        self.context.make_current()?;
        let Some(mapped) = self.table.lock().remove(&id) else { return Ok(()) };
        self.dropped.fetch_add(1, Ordering::Release);
        match mapped.host {
            Some(mapping) => {
                // SAFETY: registered by `register`; the front guarantees that nothing uses it any more.
                check_driver("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(mapping.as_ptr().cast()) })
            }
            None => {
                // SAFETY: mapped by `map_device`; the front guarantees that nothing uses it any more.
                check_driver("cuMemUnmap", unsafe { sys::cuMemUnmap(mapped.base, mapped.bytes as usize) })?;
                // SAFETY: reserved by `map_device` with this size.
                check_driver("cuMemAddressFree", unsafe { sys::cuMemAddressFree(mapped.base, mapped.bytes as usize) })
            }
        }
    }

    fn memory(&self) -> Result<(u64, u64)> {
        self.context.make_current()?;
        memory_info()
    }
}

/// Registers host memory with the driver; returns its device address.
pub(super) fn register(mapping: &Mapping) -> Result<CUdeviceptr> {
    let host = mapping.as_ptr().cast();
    // SAFETY: the range is mapped and stays so while it is registered.
    check_driver("cuMemHostRegister_v2", unsafe { sys::cuMemHostRegister_v2(host, mapping.len(), REGISTER_FLAGS) })?;
    let mut base = 0;
    // SAFETY: the range was just registered with `DEVICEMAP`.
    check_driver("cuMemHostGetDevicePointer_v2", unsafe { sys::cuMemHostGetDevicePointer_v2(&mut base, host, 0) })?;
    Ok(base)
}
