//! Which kernel, compiled with which options, for which operation.

use atomr_cuda_core::{DType, GpuError, Operation, Result};
use atomr_cuda_nvrtc::compiler::{Architecture, Source};

use crate::op::{Attention, Decode, Kernels};

/// A kernel as it is compiled: the key under which it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub family: Family,
    pub head_dim: u32,
    pub bf16: bool,
    pub causal: bool,
    pub window: bool,
    pub softcap: bool,
    pub packed: bool,
    pub lse: bool,
}

/// Which source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    Wgmma,
    Mma,
    Decode,
}

/// Sizes of a variant on one architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Queries of a block.
    pub m: u32,
    /// Keys of a step.
    pub n: u32,
    pub stages: u32,
    /// Warps that compute.
    pub warps: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

/// Shared memory that a block of compute capability 9.0 can have.
const WGMMA_SHARED: u32 = 232_448;

impl Variant {
    pub fn of_attention(op: &Attention, dtype: DType, capability: (u32, u32)) -> Result<Self> {
        let family = match op.kernels {
            Kernels::Auto if capability == (9, 0) => Family::Wgmma,
            Kernels::Auto | Kernels::Mma => Family::Mma,
            Kernels::Wgmma if capability == (9, 0) => Family::Wgmma,
            Kernels::Wgmma => {
                let reason = format!(
                    "wgmma kernels need compute capability 9.0; this device has {}.{}",
                    capability.0, capability.1
                );
                return Err(unsupported(Attention::NAME, reason));
            }
        };
        supported(Attention::NAME, capability)?;
        Ok(Variant {
            family,
            head_dim: op.shape.head_dim as u32,
            bf16: dtype == DType::BF16,
            causal: op.causal,
            window: op.windowed(),
            softcap: op.shape.softcap.is_some(),
            packed: op.packed.is_some(),
            lse: op.lse.is_some(),
        })
    }

    pub fn of_decode(op: &Decode, dtype: DType, capability: (u32, u32)) -> Result<Self> {
        supported(Decode::NAME, capability)?;
        Ok(Variant {
            family: Family::Decode,
            head_dim: op.shape.head_dim as u32,
            bf16: dtype == DType::BF16,
            causal: false,
            window: op.window.is_some(),
            softcap: op.shape.softcap.is_some(),
            packed: false,
            lse: op.lse,
        })
    }

    /// Sizes that fit in registers and shared memory, as measured (the sources' headers have them).
    pub fn tiles(&self, capability: (u32, u32)) -> Tiles {
        match self.family {
            Family::Wgmma => self.wgmma_tiles(),
            Family::Mma => self.mma_tiles(capability),
            Family::Decode => self.decode_tiles(capability),
        }
    }

    fn wgmma_tiles(&self) -> Tiles {
        let plain = !(self.causal || self.window || self.packed || self.softcap);
        let (m, n) = match self.head_dim {
            64 if self.softcap => (128, 128),
            64 => (192, 128),
            128 if plain => (128, 176),
            128 => (128, 128),
            _ => (128, 80),
        };
        let (stages, d) = (2, self.head_dim);
        let least = 2048 + 2 * d * (m + 2 * stages * n);
        let with_output = least + 2 * d * m;
        let shared_bytes = if with_output <= WGMMA_SHARED { with_output } else { least };
        Tiles { m, n, stages, warps: m / 16, threads: 128 * (1 + m / 64), shared_bytes }
    }

    fn mma_tiles(&self, capability: (u32, u32)) -> Tiles {
        let small_shared = matches!(capability, (8, 6 | 9) | (12, _));
        let (m, n, warps, stages) = match (self.head_dim, capability.0) {
            (64, _) => (128, 64, 4, 2),
            (128, _) if small_shared => (64, 64, 4, 1),
            (128, 8) => (128, 64, 4, 1),
            (128, 9) => (128, 64, 4, 2),
            (128, _) => (128, 32, 4, 2),
            _ if small_shared => (64, 32, 4, 2),
            (_, 8) => (128, 64, 8, 1),
            _ => (128, 64, 8, 2),
        };
        let shared_bytes = 2 * self.head_dim * (m + 2 * stages * n) + 32;
        Tiles { m, n, stages, warps, threads: 32 * warps, shared_bytes }
    }

    fn decode_tiles(&self, capability: (u32, u32)) -> Tiles {
        let small_shared = matches!(capability, (8, 6 | 9) | (12, _));
        let (warps, stages) = match (self.head_dim, capability.0) {
            (64, _) if small_shared => (4, 3),
            (64, _) => (4, 4),
            (128, _) if small_shared => (4, 3),
            (128, 8) => (4, 2),
            (128, _) => (4, 3),
            _ if small_shared => (2, 3),
            (_, 8) => (4, 2),
            _ => (4, 3),
        };
        let shared_bytes = warps * stages * DECODE_TILE * self.head_dim * 4;
        Tiles { m: DECODE_ROWS, n: DECODE_TILE, stages, warps, threads: 32 * warps, shared_bytes }
    }

    /// The name of its main kernel.
    pub fn kernel(&self) -> &'static str {
        match self.family {
            Family::Wgmma => "attention_forward_sm90",
            Family::Mma => "attention_forward_mma",
            Family::Decode => "attention_decode_split",
        }
    }

    /// The name of the kernel that looks at what lies on the device, where it is needed.
    pub fn inspection(&self) -> Option<&'static str> {
        match self.family {
            Family::Decode => Some("attention_inspect_pages"),
            _ => self.packed.then_some("attention_inspect_lengths"),
        }
    }

    /// Source and options.
    pub fn source(&self, architecture: Architecture) -> Source {
        let (name, code) = match self.family {
            Family::Wgmma => ("forward_sm90.cu", include_str!("../kernels/forward_sm90.cu")),
            Family::Mma => ("forward_mma.cu", include_str!("../kernels/forward_mma.cu")),
            Family::Decode => ("decode.cu", include_str!("../kernels/decode.cu")),
        };
        let code = match self.inspection() {
            Some(_) => format!("{code}\n{}", include_str!("../kernels/inspect.cu")),
            None => code.to_string(),
        };
        let tiles = self.tiles(architecture.capability());
        let mut defines = vec![
            ("HEAD_DIM", self.head_dim),
            ("TYPE", self.bf16.into()),
            ("WINDOW", self.window.into()),
            ("SOFTCAP", self.softcap.into()),
            ("LSE", self.lse.into()),
            ("STAGES", tiles.stages),
        ];
        match self.family {
            Family::Decode => defines.extend([("TILE", tiles.n), ("WARPS", tiles.warps)]),
            family => {
                defines.extend([("CAUSAL", self.causal.into()), ("VARLEN", self.packed.into())]);
                defines.extend([("BLOCK_M", tiles.m), ("BLOCK_N", tiles.n)]);
                defines.extend((family == Family::Mma).then_some(("WARPS", tiles.warps)));
            }
        }
        let source = Source::new(name, code).option("--std=c++17").option("-default-device");
        defines.into_iter().fold(source, |source, (name, value)| source.option(format!("-DATTN_{name}={value}")))
    }

    /// The architecture to compile for: only wgmma needs what one architecture alone has.
    pub fn architecture(&self, device: Architecture) -> Architecture {
        if self.family == Family::Wgmma { device } else { device.base() }
    }
}

/// Queries that a block of the decode kernel takes.
pub(crate) const DECODE_ROWS: u32 = 16;
/// Tokens that a warp of the decode kernel takes at a time.
pub(crate) const DECODE_TILE: u32 = 16;

fn supported(operation: &str, capability: (u32, u32)) -> Result<()> {
    if capability.0 >= 8 {
        return Ok(());
    }
    let reason = format!("kernels need compute capability 8.0; this device has {}.{}", capability.0, capability.1);
    Err(unsupported(operation, reason))
}

fn unsupported(operation: &str, reason: String) -> GpuError {
    GpuError::Unsupported { operation: operation.into(), executor: "cuda".into(), reason }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use atomr_cuda_nvrtc::compiler::{compile, version};

    use super::*;

    /// Options that decide most of what a kernel is: none, each that costs registers, all.
    fn variants(family: Family) -> Vec<Variant> {
        let plain = Variant {
            family,
            head_dim: 64,
            bf16: true,
            causal: false,
            window: false,
            softcap: false,
            packed: false,
            lse: false,
        };
        let options = match family {
            Family::Decode => vec![plain, Variant { window: true, softcap: true, lse: true, ..plain }],
            _ => vec![
                plain,
                Variant { causal: true, ..plain },
                Variant { causal: true, window: true, softcap: true, packed: true, lse: true, ..plain },
                Variant { bf16: false, lse: true, ..plain },
            ],
        };
        let sizes = |variant: Variant| [64, 128, 256].map(|head_dim| Variant { head_dim, ..variant });
        options.into_iter().flat_map(sizes).collect()
    }

    /// Compiling needs NVRTC but no GPU, so mistakes in the kernels show everywhere.
    #[test]
    fn the_kernels_compile_for_every_architecture_and_spill_nothing() {
        if let Err(error @ GpuError::LibraryMissing { .. }) = version() {
            println!("skipped: no NVRTC: {error}");
            return;
        }
        let mut jobs = Vec::new();
        for architecture in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a"] {
            let device: Architecture = architecture.parse().unwrap();
            let wgmma = (architecture == "sm_90a").then_some(Family::Wgmma);
            for family in [Family::Mma, Family::Decode].into_iter().chain(wgmma) {
                jobs.extend(variants(family).into_iter().map(|variant| (variant, variant.architecture(device))));
            }
        }
        let count = jobs.len();
        let jobs = std::sync::Mutex::new(jobs);
        let rows = std::sync::Mutex::new(BTreeSet::new());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((variant, architecture)) = { jobs.lock().unwrap().pop() } {
                        let compiled = compile(&variant.source(architecture), architecture)
                            .unwrap_or_else(|error| panic!("{variant:?} for {architecture}: {error}"));
                        for kernel in compiled.resources().iter().filter(|kernel| kernel.kernel == variant.kernel()) {
                            rows.lock().unwrap().insert(format!(
                                "{architecture:<8} {:<23} D {:<4} causal {:<5} all {:<5} {}  registers {:<4} spills {}",
                                kernel.kernel,
                                variant.head_dim,
                                variant.causal,
                                variant.softcap,
                                if variant.bf16 { "bf16" } else { "f16 " },
                                kernel.registers,
                                kernel.spill_stores,
                            ));
                        }
                    }
                });
            }
        });
        let rows = rows.into_inner().unwrap();
        rows.iter().for_each(|row| println!("{row}"));
        assert_eq!(rows.len(), count);
        let spilled: Vec<_> = rows.iter().filter(|row| !row.ends_with("spills 0")).collect();
        assert!(spilled.is_empty(), "{spilled:#?}");
    }
}
