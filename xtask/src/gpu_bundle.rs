//! Packs tests, benchmarks and examples into `gpu-bundle/`, to be run on a machine that has a GPU and
//! no Rust: `gpu-bundle/run test`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::{test, workspace};

const BUNDLE: &str = "gpu-bundle";
const RUN: &str = include_str!("gpu_run.sh");
/// What a bundle may weigh: it travels to machines that take no more.
const LIMIT_BYTES: u64 = 60 << 20;
/// Packages that have nothing to do on a GPU.
const LEFT_OUT: [&str; 4] = ["--exclude", "xtask", "--exclude", "atomr-cuda-core-loom"];

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    ensure!(test::has_nextest(shell), "cargo-nextest is missing: cargo install --locked cargo-nextest");
    shell.remove_path(BUNDLE)?;
    shell.create_dir(BUNDLE)?;
    // The test binaries go into an archive at once, so that the linker has to strip them.
    let _strip = shell.push_env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let _debug = shell.push_env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    let archive = format!("{BUNDLE}/tests.tar.zst");
    cmd!(shell, "cargo nextest archive --workspace {LEFT_OUT...} --release --zstd-level 19 --archive-file {archive}")
        .run()?;
    let examples = build_programs(shell)?;
    ensure!(examples > 0, "no example was built");
    pack_runner(shell)?;
    pack_folders(shell)?;
    compress_programs(shell)?;
    report(shell)
}

/// Builds examples and benchmarks, and copies them. Returns the number of examples.
fn build_programs(shell: &Shell) -> anyhow::Result<usize> {
    let build = ["--workspace", "--release", "--bins", "--benches", "--message-format=json-render-diagnostics"];
    let messages = cmd!(shell, "cargo build {build...} {LEFT_OUT...}").read()?;
    let packages = workspace::packages(shell)?;
    let mut examples = 0;
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        let Some(executable) = message["executable"].as_str() else {
            continue;
        };
        let name = message["target"]["name"].as_str().context("a target without a name")?;
        let package = package_folder(&message, shell)?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let of_example = packages.iter().any(|p| p.folder == package && p.folder_in("examples").is_some());
        match message["target"]["kind"][0].as_str() {
            // Two libraries may have benchmarks of one name.
            Some("bench") => {
                let folder = package.file_name().and_then(|folder| folder.to_str()).unwrap_or_default();
                copy(shell, executable, &format!("benches/{folder}-{name}"))?;
            }
            Some("bin") if of_example && !is_test => {
                copy(shell, executable, &format!("examples/{name}"))?;
                examples += 1;
            }
            _ => {}
        }
    }
    Ok(examples)
}

/// The folder of the package that a message of cargo's is about, relative to the workspace.
fn package_folder(message: &Value, shell: &Shell) -> anyhow::Result<PathBuf> {
    let manifest = message["manifest_path"].as_str().context("a message without a manifest")?;
    let folder = Path::new(manifest).parent().unwrap_or(Path::new(""));
    let root = shell.current_dir().canonicalize()?;
    Ok(folder.strip_prefix(root)?.to_path_buf())
}

fn copy(shell: &Shell, from: impl AsRef<Path>, name: &str) -> anyhow::Result<()> {
    let to = Path::new(BUNDLE).join(name);
    shell.create_dir(to.parent().unwrap_or(Path::new(BUNDLE)))?;
    Ok(shell.copy_file(from, to)?)
}

/// The script, and nextest, which is not installed there.
fn pack_runner(shell: &Shell) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&path).map(|folder| folder.join("cargo-nextest"));
    let nextest = candidates.into_iter().find(|file| file.is_file()).context("cargo-nextest is not in PATH")?;
    copy(shell, nextest, "cargo-nextest")?;
    cmd!(shell, "strip {BUNDLE}/cargo-nextest").run().context("`strip` comes with binutils")?;
    shell.write_file(format!("{BUNDLE}/run"), RUN)?;
    Ok(cmd!(shell, "chmod +x {BUNDLE}/run").run()?)
}

/// Tests run in their package's folder, so the folders have to be there.
fn pack_folders(shell: &Shell) -> anyhow::Result<()> {
    copy(shell, "Cargo.toml", "work/Cargo.toml")?;
    for package in workspace::packages(shell)? {
        let manifest = package.folder.join("Cargo.toml");
        copy(shell, &manifest, &format!("work/{}", manifest.display()))?;
    }
    Ok(())
}

/// Programs are a third as large packed; the script unpacks them when it first runs.
fn compress_programs(shell: &Shell) -> anyhow::Result<()> {
    let parts = ["benches", "examples", "cargo-nextest"];
    cmd!(shell, "tar -C {BUNDLE} -czf {BUNDLE}/programs.tar.gz {parts...}").run()?;
    Ok(parts.iter().try_for_each(|part| shell.remove_path(Path::new(BUNDLE).join(part)))?)
}

/// Prints what each part weighs.
fn report(shell: &Shell) -> anyhow::Result<()> {
    let mut total = 0;
    for part in files(shell, Path::new(BUNDLE))? {
        let bytes = std::fs::metadata(shell.current_dir().join(&part))?.len();
        total += bytes;
        if !part.ends_with("Cargo.toml") {
            println!("{:>7.1} MiB  {}", mebibytes(bytes), part.display());
        }
    }
    println!("{:>7.1} MiB  in all", mebibytes(total));
    ensure!(total < LIMIT_BYTES, "the bundle weighs more than {} MiB", LIMIT_BYTES >> 20);
    Ok(())
}

fn files(shell: &Shell, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in shell.read_dir(folder)? {
        let path = folder.join(name.file_name().unwrap_or_default());
        if shell.current_dir().join(&path).is_dir() {
            found.extend(files(shell, &path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
