//! The benchmarks where there is a CUDA device.

use xshell::{Shell, cmd};

use crate::gpu_probe;

pub(crate) fn run(shell: &Shell, filter: Option<&str>) -> anyhow::Result<()> {
    if !gpu_probe::or_skip(shell) {
        return Ok(());
    }
    // Only bench targets: the unit tests' harness does not know criterion's options.
    let every = "*";
    Ok(cmd!(shell, "cargo bench --workspace --bench {every} -- {filter...}").run()?)
}
