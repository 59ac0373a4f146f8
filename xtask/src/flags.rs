//! The command line.
#![allow(missing_docs, reason = "the macro generates the items")]

use std::ffi::OsString;

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
        /// The benchmarks, on this machine's CUDA device.
        cmd gpu-bench {
            /// Part of the benchmarks' names.
            optional filter: String
        }
        /// Packs tests, benchmarks and examples for a machine with a GPU and no Rust.
        cmd gpu-bundle {}
    }
}
