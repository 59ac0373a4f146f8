//! NVRTC: one program, from its text to machine code.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

use atomr_cuda_core::executor::cuda::require_library;
use atomr_cuda_core::{GpuError, Result};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use crate::compiler::{Architecture, Source, compile_error};

/// The library as NVIDIA names it.
pub(crate) const NAME: &str = "NVRTC";

/// What a program compiled to.
pub(crate) struct Built {
    pub cubin: Vec<u8>,
    pub lowered: Vec<(String, String)>,
    pub log: String,
}

/// Answers with a typed error where there is no NVRTC.
pub(crate) fn require() -> Result<()> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: it opens the shared library; the constructors that run then are those of every later use.
    let present = *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() });
    require_library(NAME, "nvrtc", present)
}

/// Major and minor version. NVRTC must be there, as for everything below.
pub(crate) fn version() -> Result<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the places that are written outlive the call.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// The architectures that it compiles for: 90 for `sm_90` and `sm_90a`.
pub(crate) fn supported_architectures() -> Result<Vec<i32>> {
    let mut count = 0;
    // SAFETY: the place that is written outlives the call.
    check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
    let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: NVRTC writes as many numbers as it has just said.
    check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
    Ok(numbers)
}

/// Compiles a source that [`Source::check`] has passed.
pub(crate) fn build(source: &Source, architecture: Architecture, include_dirs: &[PathBuf]) -> Result<Built> {
    let program = Program::new(source)?;
    let names = source.name_expressions.iter().map(|name| terminated(name)).collect::<Result<Vec<_>>>()?;
    for name in &names {
        // SAFETY: the program is alive and not compiled yet; the string is terminated and copied.
        check("nvrtcAddNameExpression", unsafe { sys::nvrtcAddNameExpression(program.0, name.as_ptr()) })?;
    }
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--ptxas-options=-v".into()];
    for folder in include_dirs {
        options.push(format!("--include-path={}", folder.display()));
    }
    options.extend(source.options.iter().cloned());
    let options = options.iter().map(|option| terminated(option)).collect::<Result<Vec<_>>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program is alive; as many terminated strings as are said outlive the call.
    let status = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    let log = program.log()?;
    match status {
        nvrtcResult::NVRTC_SUCCESS => {}
        nvrtcResult::NVRTC_ERROR_COMPILATION => return Err(compile_error(source, log)),
        nvrtcResult::NVRTC_ERROR_INVALID_OPTION => {
            return Err(GpuError::invalid("nvrtc.compile", "option", log.trim().to_string()));
        }
        other => return Err(failure("nvrtcCompileProgram", other, log.trim())),
    }
    let lowered = source.name_expressions.iter().zip(&names);
    let lowered = lowered.map(|(name, raw)| Ok((name.clone(), program.lowered(raw)?))).collect::<Result<_>>()?;
    Ok(Built { cubin: program.cubin()?, lowered, log })
}

struct Program(nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Self> {
        let (name, code) = (terminated(&source.name)?, terminated(&source.code)?);
        let strings = |part: fn(&(String, String)) -> &String| {
            source.headers.iter().map(|header| terminated(part(header))).collect::<Result<Vec<_>>>()
        };
        let (names, texts) = (strings(|header| &header.0)?, strings(|header| &header.1)?);
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (include_names, headers) = (pointers(&names), pointers(&texts));
        let mut program = std::ptr::null_mut();
        let count = headers.len() as c_int;
        // SAFETY: the strings are terminated, as many as are said, and copied by NVRTC; the place
        // that is written outlives the call.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                code.as_ptr(),
                name.as_ptr(),
                count,
                headers.as_ptr(),
                include_names.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", status)?;
        Ok(Program(program))
    }

    fn log(&self) -> Result<String> {
        let mut size = 0;
        // SAFETY: the program is alive; the place that is written outlives the call.
        check("nvrtcGetProgramLogSize", unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut size) })?;
        let mut log = vec![0u8; size];
        // SAFETY: NVRTC writes as many bytes as it has just said.
        check("nvrtcGetProgramLog", unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) })?;
        log.truncate(log.iter().position(|byte| *byte == 0).unwrap_or(size));
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive; the place that is written outlives the call.
        check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) })?;
        let mut cubin = vec![0u8; size];
        // SAFETY: NVRTC writes as many bytes as it has just said.
        check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    fn lowered(&self, name: &CStr) -> Result<String> {
        let mut lowered = std::ptr::null();
        // SAFETY: the program is alive and compiled; the place that is written outlives the call.
        let status = unsafe { sys::nvrtcGetLoweredName(self.0, name.as_ptr(), &mut lowered) };
        check("nvrtcGetLoweredName", status)?;
        // SAFETY: on success it is a terminated string that lives as long as the program.
        Ok(unsafe { CStr::from_ptr(lowered) }.to_string_lossy().into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once. A failure would leak it, which is all there is to do.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn terminated(text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| GpuError::invalid("nvrtc.compile", "source", error.to_string()))
}

fn check(function: &str, result: nvrtcResult) -> Result<()> {
    match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(failure(function, other, "")),
    }
}

fn failure(function: &str, result: nvrtcResult, log: &str) -> GpuError {
    // SAFETY: it takes a number and returns a static, terminated string, also for unknown ones.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) }.to_string_lossy();
    let status = if log.is_empty() { text.into_owned() } else { format!("{text}: {log}") };
    GpuError::Library { library: NAME.into(), function: function.into(), code: result as i64, status }
}
