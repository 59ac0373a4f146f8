//! Everything that a submission must pass, step by step, each named and timed.

use std::time::Instant;

use anyhow::Context;
use xshell::{Shell, cmd};

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let mut times: Vec<(String, u64)> = Vec::new();
    let mut step = |name: &str, task: &mut dyn FnMut() -> anyhow::Result<()>| {
        eprintln!("\n== {name}");
        let started = Instant::now();
        task().with_context(|| format!("step `{name}` failed"))?;
        times.push((name.to_string(), started.elapsed().as_secs()));
        anyhow::Ok(())
    };
    step("format", &mut || Ok(cmd!(shell, "cargo fmt --all --check").run()?))?;
    step("clippy", &mut || Ok(cmd!(shell, "cargo clippy --workspace --all-targets -- -D warnings").run()?))?;
    step("tests", &mut || crate::test::run(shell, None))?;
    step("documentation", &mut || {
        let _warnings = shell.push_env("RUSTDOCFLAGS", "-D warnings");
        Ok(cmd!(shell, "cargo doc --workspace --no-deps").run()?)
    })?;
    for package in library_crates(shell)? {
        step(&format!("{package} alone"), &mut || Ok(cmd!(shell, "cargo check --package {package}").run()?))?;
    }
    for feature in facade_features(shell)? {
        step(&format!("facade with {feature} alone"), &mut || {
            let options = ["--no-default-features", "--features", &feature];
            Ok(cmd!(shell, "cargo check --package atomr-cuda {options...}").run()?)
        })?;
    }
    eprintln!();
    for (name, seconds) in &times {
        eprintln!("{seconds:>5} s  {name}");
    }
    Ok(())
}

/// The library crates: every folder of `crates/` but core and the facade.
fn library_crates(shell: &Shell) -> anyhow::Result<Vec<String>> {
    let folders = shell.read_dir("crates")?;
    let names = folders.iter().filter(|folder| folder.join("Cargo.toml").is_file());
    let names = names.filter_map(|folder| folder.file_name()?.to_str().map(str::to_string));
    Ok(names.filter(|name| name != "atomr-cuda").map(|name| format!("atomr-cuda-{name}")).collect())
}

/// The features of the facade, read from its manifest.
fn facade_features(shell: &Shell) -> anyhow::Result<Vec<String>> {
    let manifest = shell.read_file("crates/atomr-cuda/Cargo.toml")?;
    let section = manifest.split("[features]").nth(1).context("the facade has features")?;
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim().to_string());
    Ok(names.filter(|name| name != "default" && !name.starts_with('#')).collect())
}
