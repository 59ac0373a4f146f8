//! Tests: with nextest where it is installed, else with cargo's own runner; then the doc-tests.

use std::ffi::OsString;

use xshell::{Shell, cmd};

pub(crate) fn run(shell: &Shell, args: &[OsString]) -> anyhow::Result<()> {
    tests(shell, &["--workspace"], args)?;
    // Options of a test runner mean nothing to rustdoc, and whoever names a test wants that test.
    if args.is_empty() { doc_tests(shell) } else { Ok(()) }
}

/// The tests of the packages that `scope` selects.
pub(crate) fn tests(shell: &Shell, scope: &[&str], args: &[OsString]) -> anyhow::Result<()> {
    if has_nextest(shell) {
        cmd!(shell, "cargo nextest run {scope...} --no-fail-fast {args...}").run()?;
    } else {
        // Each test starts workers: more tests at a time than this starve each other.
        let threads = "--test-threads=2";
        cmd!(shell, "cargo test {scope...} --tests --no-fail-fast -- {threads} {args...}").run()?;
    }
    Ok(())
}

pub(crate) fn doc_tests(shell: &Shell) -> anyhow::Result<()> {
    Ok(cmd!(shell, "cargo test --workspace --doc").run()?)
}

pub(crate) fn has_nextest(shell: &Shell) -> bool {
    cmd!(shell, "cargo nextest --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}
