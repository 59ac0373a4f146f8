//! Captured graphs: made from a stream's work, launched with one call.

use std::ptr;

use cudarc::driver::sys::{
    self, CUdeviceptr, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUresult, CUstream, CUstreamCaptureMode,
};

use crate::error::Result;

use super::driver::check_driver;

/// A capture that has begun; dropped, it is given up.
pub(super) struct Capture {
    stream: CUstream,
    ended: bool,
}

impl Capture {
    pub fn begin(stream: CUstream) -> Result<Self> {
        // Relaxed: the control thread maps segments meanwhile, which is no part of the graph.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        check_driver("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })?;
        Ok(Capture { stream, ended: false })
    }

    fn end(&mut self) -> Result<CUgraph> {
        self.ended = true;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive and capturing; the place that is written outlives the call.
        check_driver("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) })?;
        Ok(graph)
    }

    /// Ends the capture. `old` is updated where the driver can, which saves an instantiation.
    pub fn finish(
        mut self,
        version: u64,
        places: Vec<CUdeviceptr>,
        old: Option<CapturedGraph>,
    ) -> Result<CapturedGraph> {
        let graph = Owned(self.end()?);
        if let Some(mut old) = old {
            // SAFETY: the struct is plain data that the driver fills in.
            let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
            // SAFETY: both graphs are alive; the place that is written outlives the call.
            if unsafe { sys::cuGraphExecUpdate_v2(old.exec, graph.0, &mut info) } == CUresult::CUDA_SUCCESS {
                (old.version, old.places) = (version, places);
                return Ok(old);
            }
        }
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is alive; the place that is written outlives the call.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph.0, 0) };
        check_driver("cuGraphInstantiateWithFlags", status)?;
        Ok(CapturedGraph { exec, version, places })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended
            && let Ok(graph) = self.end()
        {
            drop(Owned(graph));
        }
    }
}

struct Owned(CUgraph);

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph is owned here; an executable one made from it lives on without it.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// A graph that can be launched.
pub(super) struct CapturedGraph {
    exec: CUgraphExec,
    version: u64,
    /// Where its buffers were when it was captured.
    places: Vec<CUdeviceptr>,
}

impl CapturedGraph {
    /// Whether it is this version of its graph, with the buffers where they are now.
    pub fn is(&self, version: u64, places: &[CUdeviceptr]) -> bool {
        self.version == version && self.places == places
    }

    pub fn launch(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both are alive; what the graph uses is that of the operation being enqueued.
        check_driver("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream) })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: owned here; the driver keeps what running launches need until they have ended.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
