//! The project's automation, in plain Rust: one file a task.

mod ci;
mod flags;
mod test;

fn main() -> anyhow::Result<()> {
    let flags = flags::Xtask::from_env_or_exit();
    let shell = xshell::Shell::new()?;
    shell.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    match flags.subcommand {
        flags::XtaskCmd::Ci(_) => ci::run(&shell),
        flags::XtaskCmd::Test(test) => test::run(&shell, test.filter.as_deref()),
    }
}
