//! The tests where there is a CUDA device: the same files, which then run on it as well.

use anyhow::Context;
use xshell::Shell;

use crate::{gpu_probe, test, workspace};

pub(crate) fn run(shell: &Shell, suite: Option<&str>) -> anyhow::Result<()> {
    // A name that is wrong is wrong on every machine, so it is looked up first.
    let package = suite.map(|suite| package(shell, suite)).transpose()?;
    if !gpu_probe::or_skip(shell) {
        return Ok(());
    }
    match &package {
        Some(package) => test::tests(shell, &["--release", "--package", package], &[]),
        None => test::tests(shell, &["--release", "--workspace"], &[]),
    }
}

/// The package in the folder `suite` of `crates/`.
fn package(shell: &Shell, suite: &str) -> anyhow::Result<String> {
    let packages = workspace::packages(shell)?;
    let suites: Vec<_> = packages.iter().filter_map(|package| Some((package.folder_in("crates")?, package))).collect();
    let known: Vec<&str> = suites.iter().map(|(folder, _)| *folder).collect();
    let found = suites.iter().find(|(folder, _)| *folder == suite);
    let (_, package) = found.with_context(|| format!("no suite `{suite}`; there are {}", known.join(", ")))?;
    Ok(package.name.clone())
}
