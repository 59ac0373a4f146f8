//! Everything that a submission must pass, step by step, each named and timed. The first step that
//! fails ends it.

use std::time::{Duration, Instant};

use anyhow::Context;
use xshell::{Shell, cmd};

use crate::test;
use crate::workspace::{self, Package};

const FACADE: &str = "atomr-cuda";

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let mut steps = Steps::default();
    let result = all(shell, &mut steps);
    steps.summarise();
    result
}

fn all(shell: &Shell, steps: &mut Steps) -> anyhow::Result<()> {
    let packages = workspace::packages(shell)?;
    steps.step("format", || Ok(cmd!(shell, "cargo fmt --all --check").run()?))?;
    steps.step("clippy", || Ok(cmd!(shell, "cargo clippy --workspace --all-targets -- -D warnings").run()?))?;
    // Among them the models of core's ring under loom, which are a package of their own.
    steps.step("tests", || test::tests(shell, &["--workspace"], &[]))?;
    steps.step("doc-tests", || test::doc_tests(shell))?;
    steps.step("documentation", || {
        let _warnings = shell.push_env("RUSTDOCFLAGS", "-D warnings");
        Ok(cmd!(shell, "cargo doc --workspace --no-deps").run()?)
    })?;
    for package in libraries(&packages) {
        steps.step(&format!("{package} alone"), || Ok(cmd!(shell, "cargo check --package {package}").run()?))?;
    }
    for feature in facade_features(&packages)? {
        steps.step(&format!("{FACADE} with {feature} alone"), || {
            let options = ["--no-default-features", "--features", feature];
            Ok(cmd!(shell, "cargo check --package {FACADE} {options...}").run()?)
        })?;
    }
    Ok(())
}

/// Core and the libraries: every folder of `crates/` but the facade's.
fn libraries(packages: &[Package]) -> impl Iterator<Item = &str> {
    let inside = packages.iter().filter(|package| package.folder_in("crates").is_some());
    inside.map(|package| package.name.as_str()).filter(|name| *name != FACADE)
}

fn facade_features(packages: &[Package]) -> anyhow::Result<impl Iterator<Item = &str>> {
    let facade = packages.iter().find(|package| package.name == FACADE);
    let facade = facade.with_context(|| format!("the workspace has no package {FACADE}"))?;
    Ok(facade.features.iter().map(String::as_str).filter(|feature| *feature != "default"))
}

/// How long each step took, and how it ended.
#[derive(Default)]
struct Steps {
    done: Vec<(String, Duration, bool)>,
}

impl Steps {
    fn step(&mut self, name: &str, task: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let result = task();
        self.done.push((name.to_string(), started.elapsed(), result.is_ok()));
        result.with_context(|| format!("step `{name}` failed"))
    }

    fn summarise(&self) {
        eprintln!();
        for (name, time, passed) in &self.done {
            let state = if *passed { "ok    " } else { "FAILED" };
            eprintln!("{state} {:>7.1} s  {name}", time.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, time, _)| *time).sum();
        eprintln!("       {:>7.1} s  in all", total.as_secs_f64());
    }
}
