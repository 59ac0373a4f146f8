//! What a source compiled to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Architecture;

/// A compiled source: code for one architecture, and what the compiler said of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    pub(crate) cubin: Vec<u8>,
    pub(crate) lowered: Vec<(String, String)>,
    pub(crate) log: String,
    pub(crate) architecture: Architecture,
    pub(crate) resources: Vec<Resources>,
    pub(crate) took: Duration,
    #[serde(skip)]
    pub(crate) from_cache: bool,
}

impl Compiled {
    /// The machine code, an ELF file that `cuModuleLoadData` takes.
    pub fn cubin(&self) -> &[u8] {
        &self.cubin
    }

    /// The name in the machine code of a name expression of the source.
    pub fn lowered(&self, name_expression: &str) -> Option<&str> {
        self.lowered.iter().find(|(known, _)| known == name_expression).map(|(_, lowered)| lowered.as_str())
    }

    /// Warnings and remarks; empty where there are none.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// What it was compiled for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Registers, spills and memory of each kernel, as `ptxas` reports them.
    pub fn resources(&self) -> &[Resources] {
        &self.resources
    }

    /// How long the compiler took, when it ran.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Whether it came from a cache in memory or on disk.
    pub fn from_cache(&self) -> bool {
        self.from_cache
    }
}

/// What one kernel takes of a multiprocessor, as `ptxas` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// The kernel's name in the machine code.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of shared memory that are known when compiling.
    pub static_shared: u32,
    /// Bytes of stack a thread.
    pub stack: u32,
    /// Bytes a thread that are stored because registers ran out.
    pub spill_stores: u32,
    /// Bytes a thread that are loaded again.
    pub spill_loads: u32,
}

/// Takes `ptxas`' report on each kernel out of a log; gives the rest of the log and the reports.
pub(crate) fn split_log(log: &str) -> (String, Vec<Resources>) {
    let mut rest = String::new();
    let mut kernels: Vec<Resources> = Vec::new();
    let mut current: Option<usize> = None;
    for line in log.lines() {
        let body = line.trim_start_matches("ptxas").trim_start().trim_start_matches("info").trim_start();
        let body = body.trim_start_matches(':').trim_start();
        if let Some(name) = body.strip_prefix("Compiling entry function ").and_then(quoted) {
            kernels.push(Resources { kernel: name.into(), ..Resources::default() });
            current = None;
        } else if let Some(name) = body.strip_prefix("Function properties for ") {
            current = kernels.iter().position(|kernel| kernel.kernel == name.trim());
        } else if body.contains("bytes stack frame") && body.contains("bytes spill stores") {
            if let Some(kernel) = current.and_then(|at| kernels.get_mut(at)) {
                kernel.stack = before(body, " bytes stack frame");
                kernel.spill_stores = before(body, " bytes spill stores");
                kernel.spill_loads = before(body, " bytes spill loads");
            }
        } else if body.starts_with("Used ") && body.contains(" registers") {
            if let Some(kernel) = kernels.last_mut() {
                kernel.registers = before(body, " registers");
                kernel.static_shared = before(body, " bytes smem");
            }
        } else if !(body.is_empty() || body.contains("bytes gmem") || body.starts_with("Compile time = ")) {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    (rest.trim_end().to_string(), kernels)
}

/// The first quoted text.
fn quoted(text: &str) -> Option<&str> {
    text.split('\'').nth(1)
}

/// The number that stands before `unit`; 0 where there is none.
fn before(text: &str, unit: &str) -> u32 {
    let digits = text.split(unit).next().filter(|_| text.contains(unit)).unwrap_or_default();
    let start = digits.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    digits[start..].parse().unwrap_or(0)
}

/// The line of the first error in the source called `name`.
pub(crate) fn first_error_line(name: &str, log: &str) -> Option<u32> {
    log.lines().find_map(|line| {
        let (number, what) = line.strip_prefix(name)?.strip_prefix('(')?.split_once("): ")?;
        (what.starts_with("error") || what.starts_with("catastrophic error")).then(|| number.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_taken_out_of_the_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90a'\n\
            ptxas info    : Function properties for _Z1kPf\n    \
            24 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 1024 bytes smem\n\
            ptxas info    : Compile time = 12.345 ms\n\
            k.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n\
            ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n";
        let (rest, kernels) = split_log(log);
        assert_eq!(rest.lines().count(), 2, "{rest}");
        let expected = Resources {
            kernel: "_Z1kPf".into(),
            registers: 255,
            static_shared: 1024,
            stack: 24,
            spill_stores: 8,
            spill_loads: 16,
        };
        assert_eq!(kernels, [expected]);
    }

    #[test]
    fn the_first_error_of_the_source_has_a_line() {
        let log = "a.cu(2): warning: nothing\nb.h(9): error: there\na.cu(7): error: here\na.cu(8): error: and here";
        assert_eq!(first_error_line("a.cu", log), Some(7));
        assert_eq!(first_error_line("a.cu", "a.cu(1): catastrophic error: cannot open source file"), Some(1));
        assert_eq!(first_error_line("a.cu", "nvrtc: error: something"), None);
    }
}
