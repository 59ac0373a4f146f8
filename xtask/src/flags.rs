//! The command line.
#![allow(missing_docs, reason = "the macro generates the items")]

use std::ffi::OsString;
use std::path::PathBuf;

xflags::xflags! {
    /// The project's automation.
    cmd xtask {
        /// Everything that a submission must pass.
        cmd ci {}
        /// The tests, then the doc-tests; with arguments, the tests alone.
        cmd test {
            /// Part of the tests' names, and, behind `--`, options of the test runner.
            repeated args: OsString
        }
        /// Says whether this machine has a CUDA device.
        cmd gpu-probe {}
        /// The tests, on this machine's CUDA device.
        cmd gpu-test {
            /// A folder of crates/: `core`, `cublas`, ...; all of them by default.
            optional suite: String
        }
        /// The benchmarks named `gpu`, on this machine's CUDA device.
        cmd gpu-bench {
            /// Part of the benchmarks' names.
            optional filter: String
            /// Where the results go, a JSON line each; target/gpu-bench.jsonl by default.
            optional --output output: PathBuf
        }
        /// Draws results of `gpu-bench` into docs/plots.
        cmd plot {
            /// The results, a JSON line each.
            required results: PathBuf
            /// What PyTorch's script printed on the same machine.
            optional --torch torch: PathBuf
        }
        /// Packs tests, benchmarks and examples for a machine with a GPU and no Rust.
        cmd gpu-bundle {}
    }
}
