//! The project's automation, in plain Rust: one file a task.
#![forbid(unsafe_code)]

mod ci;
mod flags;
mod gpu_bench;
mod gpu_bundle;
mod gpu_probe;
mod gpu_test;
mod plot;
mod test;
mod workspace;

fn main() -> anyhow::Result<()> {
    let flags = flags::Xtask::from_env_or_exit();
    let shell = xshell::Shell::new()?;
    shell.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    match flags.subcommand {
        flags::XtaskCmd::Ci(_) => ci::run(&shell),
        flags::XtaskCmd::Test(test) => test::run(&shell, &test.args),
        flags::XtaskCmd::GpuProbe(_) => gpu_probe::run(&shell),
        flags::XtaskCmd::GpuTest(test) => gpu_test::run(&shell, test.suite.as_deref()),
        flags::XtaskCmd::GpuBench(bench) => gpu_bench::run(&shell, &bench),
        flags::XtaskCmd::Plot(plot) => plot::run(&shell, &plot),
        flags::XtaskCmd::GpuBundle(_) => gpu_bundle::run(&shell),
    }
}
