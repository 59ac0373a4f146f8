//! Kernels that fault on purpose, to prove fail-over.

use std::ffi::CString;

use cudarc::driver::sys;

use crate::error::{GpuError, Result};
use crate::worker::fault::{Fault, FaultOp, strike};

use super::CudaCall;
use super::driver::check_driver;

const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 text[2] = {102, 0};
.visible .entry illegal_address() { .reg .b64 %a; mov.u64 %a, 16; st.global.u32 [%a], 1; ret; }
.visible .entry stop() { trap; ret; }
.visible .entry misaligned(.param .u64 p) {
    .reg .b64 %a; .reg .b32 %v;
    ld.param.u64 %a, [p]; add.u64 %a, %a, 1; ld.volatile.global.u32 %v, [%a]; st.global.u32 [%a], %v; ret;
}
.visible .entry endless() { again: nanosleep.u32 1000; bra again; }
.visible .entry assertion() {
    .reg .b64 %t; .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    mov.u64 %t, text; cvta.global.u64 %t, %t;
    st.param.b64 [a], %t; st.param.b64 [b], %t; st.param.b32 [c], 1; st.param.b64 [d], %t; st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e);
    ret;
}
";

/// Launches the kernel of a GPU fault, or strikes the worker itself.
pub(super) fn enqueue(call: &mut CudaCall<'_>) -> Result<()> {
    let op: FaultOp = call.params()?;
    let kernel = match op.fault {
        Fault::IllegalAddress => "illegal_address",
        Fault::Trap => "stop",
        Fault::Assert => "assertion",
        Fault::Misaligned => "misaligned",
        Fault::EndlessKernel => "endless",
        fault => {
            strike(fault);
            return Ok(());
        }
    };
    let text = |s: &str| CString::new(s).map_err(|e| GpuError::invalid("core.fault", "kernel", e.to_string()));
    let (source, name) = (text(PTX)?, text(kernel)?);
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the source is a terminated string; the worker does not outlive the module for long.
    check_driver("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, source.as_ptr().cast()) })?;
    // SAFETY: the module was just loaded; the name is a terminated string.
    check_driver("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) })?;
    let mut address = call.scratch(64)?;
    let mut params: [*mut std::ffi::c_void; 1] = [(&raw mut address).cast()];
    // SAFETY: the kernels take one 64-bit parameter or none; one thread each.
    let status = unsafe {
        sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, call.stream(), params.as_mut_ptr(), std::ptr::null_mut())
    };
    check_driver("cuLaunchKernel", status)
}
