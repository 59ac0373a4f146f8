//! The benchmarks named `gpu`, where there is a CUDA device. Each prints a JSON line a result; they
//! are shown as they come, and kept in a file that `cargo xtask plot` draws.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use xshell::{Shell, cmd};

use crate::flags::GpuBench;
use crate::gpu_probe;

const OUTPUT: &str = "target/gpu-bench.jsonl";

pub(crate) fn run(shell: &Shell, flags: &GpuBench) -> anyhow::Result<()> {
    if !gpu_probe::or_skip(shell) {
        return Ok(());
    }
    // A path that is given is the caller's; the default one lies in the workspace.
    let output = flags.output.clone().unwrap_or_else(|| shell.current_dir().join(OUTPUT));
    if let Some(folder) = output.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let filter = &flags.filter;
    let bench = cmd!(shell, "cargo bench --workspace --no-fail-fast --bench gpu -- {filter...}");
    let lines = keep_lines(bench.into(), &output)?;
    println!("{lines} results in {}", output.display());
    Ok(())
}

/// Runs `command`, shows what it prints, and writes those lines that are JSON to `output`.
fn keep_lines(mut command: Command, output: &Path) -> anyhow::Result<usize> {
    let mut file = std::fs::File::create(output).with_context(|| format!("writing {}", output.display()))?;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let mut kept = 0;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        if line.starts_with('{') {
            writeln!(file, "{line}")?;
            kept += 1;
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "a benchmark failed: {status}");
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("results.jsonl");
        let mut command = Command::new("printf");
        command.arg(r#"Running a benchmark\n{"benchmark":"a"}\nskipped: no CUDA device\n{"benchmark":"b"}\n"#);
        assert_eq!(keep_lines(command, &output).expect("it runs"), 2);
        let kept = std::fs::read_to_string(&output).expect("it was written");
        assert_eq!(kept, "{\"benchmark\":\"a\"}\n{\"benchmark\":\"b\"}\n");
        let mut failing = Command::new("sh");
        failing.args(["-c", "exit 3"]);
        assert!(keep_lines(failing, &output).is_err());
    }
}
