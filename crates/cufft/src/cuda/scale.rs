//! The factor of a normalised transform, applied where the result lies.

use std::ffi::c_void;

use atomr_cuda_core::executor::CudaCall;
use atomr_cuda_core::{DType, Result};
use atomr_cuda_nvrtc::compiler::{Architecture, Kernel, LaunchConfig, Module, Source, compile};

use crate::op::{Embedding, Transform};

const THREADS: u32 = 256;
const MOST_BLOCKS: u64 = 1 << 16;

/// Which numbers, and how many an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ScaleKey {
    number: &'static str,
    parts: u32,
}

impl ScaleKey {
    pub fn of(dtype: DType) -> Self {
        let number = match dtype {
            DType::F16 | DType::C16 => "half",
            DType::F64 | DType::C64 => "double",
            _ => "float",
        };
        let parts = if matches!(dtype, DType::C16 | DType::C32 | DType::C64) { 2 } else { 1 };
        ScaleKey { number, parts }
    }

    fn source(&self) -> Source {
        Source::new("scale.cu", include_str!("scale.cu"))
            .option(format!("-DPARTS={}", self.parts))
            .option(format!("-DHALF={}", u8::from(self.number == "half")))
            .option(format!("-DNUMBER={}", self.number))
    }
}

pub(super) struct Scale(Kernel);

impl Scale {
    /// For side tasks: it compiles, unless a cache has the result.
    pub fn load(key: ScaleKey, architecture: Architecture) -> Result<Self> {
        let module = Module::load(&*compile(&key.source(), architecture)?)?;
        Ok(Scale(module.kernel("scale")?))
    }

    /// Multiplies the output of `op`, which lies at `data`.
    pub fn launch(
        &self,
        op: &Transform,
        output: &Embedding,
        data: u64,
        factor: f64,
        call: &CudaCall<'_>,
    ) -> Result<()> {
        let lengths = op.output_lengths();
        let steps = output.steps().unwrap_or_default();
        // Dimensions that are not there come first, with one element each.
        let (mut n, mut step) = ([1i64; 3], [0i64; 3]);
        let missing = 3 - lengths.len();
        for (at, (length, distance)) in lengths.iter().zip(&steps).enumerate() {
            (n[missing + at], step[missing + at]) = (*length as i64, *distance as i64);
        }
        let count = n.iter().product::<i64>() * op.batch as i64;
        let distance = output.distance as i64;
        let at = |value: *const i64| value.cast_mut().cast::<c_void>();
        let mut arguments = [
            (&raw const data).cast_mut().cast(),
            (&raw const factor).cast_mut().cast(),
            at(&count),
            at(&distance),
            at(&n[0]),
            at(&n[1]),
            at(&n[2]),
            at(&step[0]),
            at(&step[1]),
            at(&step[2]),
        ];
        let blocks = (count as u64).div_ceil(THREADS.into()).min(MOST_BLOCKS) as u32;
        let config = LaunchConfig { grid: [blocks, 1, 1], block: [THREADS, 1, 1], ..LaunchConfig::default() };
        // SAFETY: the parameters of `scale`; the layout was compared with the buffer when the operation
        // was checked; the stream is the current context's.
        unsafe { self.0.launch(&config, call.stream(), &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use atomr_cuda_core::GpuError;
    use atomr_cuda_nvrtc::compiler::version;

    use super::*;

    /// Compiling needs NVRTC but no GPU, so mistakes in the kernel show everywhere.
    #[test]
    fn the_kernel_compiles_for_every_type() {
        if let Err(error @ GpuError::LibraryMissing { .. }) = version() {
            println!("skipped: no NVRTC: {error}");
            return;
        }
        for dtype in [DType::F16, DType::C16, DType::F32, DType::C32, DType::F64, DType::C64] {
            for architecture in ["sm_80", "sm_90", "sm_100"] {
                let compiled = compile(&ScaleKey::of(dtype).source(), architecture.parse().unwrap()).unwrap();
                assert!(compiled.resources().iter().any(|kernel| kernel.kernel == "scale"));
            }
        }
    }
}
