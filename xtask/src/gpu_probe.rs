//! Whether there is a CUDA device.

use std::path::Path;

use xshell::{Shell, cmd};

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    if !has_device(shell) {
        println!("no CUDA device");
        return Ok(());
    }
    println!("CUDA device");
    // A container may have the device and not the tool: that is no failure.
    let _ = cmd!(shell, "nvidia-smi -L").quiet().ignore_status().run();
    Ok(())
}

/// Whether this machine has a CUDA device; says so when it has none.
pub(crate) fn or_skip(shell: &Shell) -> bool {
    let found = has_device(shell);
    if !found {
        println!("skipped: no CUDA device");
    }
    found
}

fn has_device(shell: &Shell) -> bool {
    Path::new("/dev/nvidiactl").exists()
        || cmd!(shell, "nvidia-smi -L").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}
