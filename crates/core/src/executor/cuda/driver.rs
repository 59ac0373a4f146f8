//! The driver's answers as errors, and whether there is a driver at all.

use std::ffi::CStr;
use std::os::raw::c_char;

use cudarc::driver::sys::{self, CUresult};

use crate::error::{GpuError, Result};

/// A driver status as a result; sticky ones say so.
pub fn check_driver(function: &str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (function, code, status) = (function.to_string(), result as i64, describe(result));
    if is_sticky(code) {
        return Err(GpuError::Sticky { function, code, status, hint: None });
    }
    Err(GpuError::Library { library: "CUDA driver".into(), function, code, status })
}

/// Whether the context cannot be used after this code: ECC (214), NVLink (220), the launch failures
/// 700 to 719 except those that only refuse a call, and "unknown" (999).
pub(crate) fn is_sticky(code: i64) -> bool {
    matches!(code, 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
}

fn describe(result: CUresult) -> String {
    type Lookup = unsafe fn(CUresult, *mut *const c_char) -> CUresult;
    let text = |lookup: Lookup| {
        let mut text = std::ptr::null();
        // SAFETY: the place that is written outlives the call; the string is static in the driver.
        match unsafe { lookup(result, &mut text) } {
            // SAFETY: on success the driver has written a static, terminated string.
            CUresult::CUDA_SUCCESS if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            _ => String::new(),
        }
    };
    format!("{}: {}", text(sys::cuGetErrorName), text(sys::cuGetErrorString))
}

/// Loads and initialises the driver.
///
/// # Errors
/// [`GpuError::LibraryMissing`] without `libcuda.so`; the driver's own answer otherwise.
pub(crate) fn driver_present() -> Result<()> {
    // SAFETY: only asks the loader.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::LibraryMissing {
            library: "CUDA driver".into(),
            searched: vec!["libcuda.so".into(), "libcuda.so.1".into()],
            reason: "the NVIDIA driver is not installed, or its library is not on the loader's path".into(),
        });
    }
    // SAFETY: takes no pointer.
    check_driver("cuInit", unsafe { sys::cuInit(0) })
}

/// Answers with a typed error where a library's shared object did not load.
///
/// `name` is the library's, as its vendor writes it; `file` the one that the loader looks for, as in
/// `cublas`.
///
/// # Errors
/// [`GpuError::LibraryMissing`] with the names that were searched.
pub fn require_library(name: &str, file: &str, present: bool) -> Result<()> {
    if present {
        return Ok(());
    }
    Err(GpuError::LibraryMissing {
        library: name.into(),
        searched: cudarc::get_lib_name_candidates(file),
        reason: format!("install the CUDA toolkit, or put the folder of lib{file}.so on LD_LIBRARY_PATH"),
    })
}

/// How many CUDA devices there are.
///
/// # Errors
/// As for a missing or failing driver.
pub fn device_count() -> Result<usize> {
    driver_present()?;
    let mut count = 0;
    // SAFETY: the place that is written outlives the call.
    check_driver("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count.max(0) as usize)
}

/// Whether there is a driver and at least one device. Makes no context.
pub fn cuda_available() -> bool {
    device_count().is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_a_context_are_known() {
        for code in [214, 700, 710, 715, 716, 717, 718, 719, 999] {
            assert!(is_sticky(code), "{code}");
        }
        for code in [0, 1, 2, 100, 200, 400, 600, 701, 704, 800, 900] {
            assert!(!is_sticky(code), "{code}");
        }
    }

    #[test]
    fn asking_for_devices_never_panics() {
        match device_count() {
            Ok(count) => assert_eq!(cuda_available(), count > 0),
            Err(error) => assert!(!error.to_string().is_empty() && !cuda_available()),
        }
    }
}
