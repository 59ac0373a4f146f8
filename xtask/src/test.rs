//! Tests: with nextest where it is installed, else with cargo's own runner; then the doc-tests.

use xshell::{Shell, cmd};

pub(crate) fn run(shell: &Shell, filter: Option<&str>) -> anyhow::Result<()> {
    let filter: &[&str] = filter.as_slice();
    let nextest = cmd!(shell, "cargo nextest --version").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    if nextest {
        cmd!(shell, "cargo nextest run --workspace --no-fail-fast {filter...}").run()?;
    } else {
        let one = "--test-threads=2";
        cmd!(shell, "cargo test --workspace --tests --no-fail-fast -- {one} {filter...}").run()?;
    }
    cmd!(shell, "cargo test --workspace --doc {filter...}").run()?;
    Ok(())
}
