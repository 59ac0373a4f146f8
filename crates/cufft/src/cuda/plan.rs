//! Plans of cuFFT.

use std::ffi::c_void;
use std::sync::OnceLock;

use atomr_cuda_core::{DType, GpuError, Result};
use cudarc::cufft::sys::{self, cufftHandle, cufftResult};
use cudarc::driver::sys::CUstream;
use libloading::Library;
use parking_lot::Mutex;

use crate::op::{Embedding, Kind, Lengths};

use super::NAME;

/// Everything that a plan depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub lengths: Lengths,
    pub batch: u64,
    pub input: (Lengths, u64, u64),
    pub output: (Lengths, u64, u64),
    pub types: (DType, DType),
}

impl PlanKey {
    pub fn side(embedding: &Embedding) -> (Lengths, u64, u64) {
        (embedding.embed.clone(), embedding.stride, embedding.distance)
    }
}

/// A plan, without memory to work in of its own.
#[derive(Debug)]
pub(super) struct Plan {
    handle: cufftHandle,
    work_bytes: usize,
    /// The stream and the area that it was last told, as addresses: telling it again takes longer than
    /// launching a small transform.
    told: Mutex<Option<(usize, u64)>>,
}

/// Numbers of `cudaDataType`.
fn number(dtype: DType) -> Result<i32> {
    match dtype {
        DType::F32 => Ok(0),
        DType::F64 => Ok(1),
        DType::F16 => Ok(2),
        DType::C32 => Ok(4),
        DType::C64 => Ok(5),
        DType::C16 => Ok(6),
        other => Err(GpuError::invalid("cufft.plan", "types", format!("there is no transform of {other}"))),
    }
}

/// The complex type of the same precision, in which cuFFT computes.
fn complex(dtype: DType) -> DType {
    match dtype {
        DType::F16 => DType::C16,
        DType::F32 => DType::C32,
        DType::F64 => DType::C64,
        other => other,
    }
}

impl Plan {
    /// Takes a while, and may compile: for side tasks.
    pub fn new(key: &PlanKey) -> Result<Self> {
        let functions = extended()?;
        let mut plan = Plan { handle: 0, work_bytes: 0, told: Mutex::new(None) };
        // SAFETY: the place that is written outlives the call; the library is there.
        check("cufftCreate", unsafe { sys::cufftCreate(&mut plan.handle) })?;
        // SAFETY: the handle was just made.
        check("cufftSetAutoAllocation", unsafe { sys::cufftSetAutoAllocation(plan.handle, 0) })?;
        let signed = |lengths: &Lengths| -> Vec<i64> { lengths.iter().map(|length| *length as i64).collect() };
        let (mut lengths, mut from, mut to) = (signed(&key.lengths), signed(&key.input.0), signed(&key.output.0));
        // SAFETY: the three arrays have as many entries as the rank says and outlive the call, as does
        // the place that is written; the type is that of the header.
        let status = unsafe {
            (functions.make_plan)(
                plan.handle,
                lengths.len() as i32,
                lengths.as_mut_ptr(),
                from.as_mut_ptr(),
                key.input.1 as i64,
                key.input.2 as i64,
                number(key.types.0)?,
                to.as_mut_ptr(),
                key.output.1 as i64,
                key.output.2 as i64,
                number(key.types.1)?,
                key.batch as i64,
                &mut plan.work_bytes,
                number(complex(key.types.0))?,
            )
        };
        check("cufftXtMakePlanMany", status)?;
        Ok(plan)
    }

    /// Bytes that an execution needs to work in.
    pub fn work_bytes(&self) -> usize {
        self.work_bytes
    }

    /// Enqueues the transforms.
    ///
    /// # Safety
    /// Input, output and `work` are device memory that the plan's layouts and `work_bytes` fit in, valid
    /// until the transforms have finished; the stream is of the current context.
    pub unsafe fn execute(&self, kind: Kind, from: u64, to: u64, work: u64, stream: CUstream) -> Result<()> {
        let functions = extended()?;
        let mut told = self.told.lock();
        if *told != Some((stream as usize, work)) {
            // SAFETY: the plan is alive, the stream too.
            check("cufftSetStream", unsafe { sys::cufftSetStream(self.handle, stream.cast()) })?;
            if self.work_bytes > 0 {
                // SAFETY: the plan is alive; the memory is the caller's to give.
                check("cufftSetWorkArea", unsafe { sys::cufftSetWorkArea(self.handle, work as *mut c_void) })?;
            }
            *told = Some((stream as usize, work));
        }
        // CUFFT_FORWARD, CUFFT_INVERSE.
        let direction = if kind.is_forward() { -1 } else { 1 };
        // SAFETY: the caller's contract; the type is that of the header.
        let status = unsafe { (functions.execute)(self.handle, from as *mut c_void, to as *mut c_void, direction) };
        check("cufftXtExec", status)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; what it launched has finished, as the cache waits.
        let _ = unsafe { sys::cufftDestroy(self.handle) };
    }
}

type MakePlan = unsafe extern "C" fn(
    cufftHandle,
    i32,
    *mut i64,
    *mut i64,
    i64,
    i64,
    i32,
    *mut i64,
    i64,
    i64,
    i32,
    i64,
    *mut usize,
    i32,
) -> cufftResult;
type Execute = unsafe extern "C" fn(cufftHandle, *mut c_void, *mut c_void, i32) -> cufftResult;

/// The functions of `cufftXt.h` that take every type.
struct Extended {
    make_plan: MakePlan,
    execute: Execute,
    _library: Library,
}

fn extended() -> Result<&'static Extended> {
    static EXTENDED: OnceLock<Result<Extended>> = OnceLock::new();
    EXTENDED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Extended> {
    let searched = cudarc::get_lib_name_candidates("cufft");
    let missing =
        |reason: String| GpuError::LibraryMissing { library: NAME.into(), searched: searched.clone(), reason };
    // SAFETY: cuFFT's constructors run as they do for each of its users.
    let library = searched.iter().find_map(|name| unsafe { Library::new(name) }.ok());
    let library = library.ok_or_else(|| missing("none of them can be opened".into()))?;
    let no_symbol = |error: libloading::Error| missing(error.to_string());
    // SAFETY: the types are those of the functions in `cufftXt.h`; the library stays open beside them.
    let make_plan = *unsafe { library.get::<MakePlan>(b"cufftXtMakePlanMany\0") }.map_err(no_symbol)?;
    // SAFETY: as above.
    let execute = *unsafe { library.get::<Execute>(b"cufftXtExec\0") }.map_err(no_symbol)?;
    Ok(Extended { make_plan, execute, _library: library })
}

/// The library's version, as `12.0.0`.
pub(super) fn version() -> Result<String> {
    let mut version = 0;
    // SAFETY: the place that is written outlives the call; the library is there.
    check("cufftGetVersion", unsafe { sys::cufftGetVersion(&mut version) })?;
    Ok(format!("{}.{}.{}", version / 1000, version / 100 % 10, version % 100))
}

/// A status of cuFFT as a result.
fn check(function: &str, status: cufftResult) -> Result<()> {
    if status == cufftResult::CUFFT_SUCCESS {
        return Ok(());
    }
    let (code, status) = (status as i64, format!("{status:?}"));
    Err(GpuError::Library { library: NAME.into(), function: function.into(), code, status })
}
