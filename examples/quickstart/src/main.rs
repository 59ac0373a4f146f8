//! Finds the principal components of handwritten digits, kills the worker half-way, and finishes.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::Context;
use atomr_core::actor::ActorSystem;
use atomr_cuda::prelude::*;
use quickstart::{Components, Digits, plot, principal_components};
use rustix::process::{Pid, Signal, kill_process};

/// `--executor`.
#[derive(Debug, Clone, Copy)]
enum Executor {
    Auto,
    Host,
    Cuda,
}

impl FromStr for Executor {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Executor::Auto),
            "host" => Ok(Executor::Host),
            "cuda" => Ok(Executor::Cuda),
            _ => Err("expected auto, host or cuda".into()),
        }
    }
}

fn main() -> anyhow::Result<()> {
    atomr_cuda::worker::init();
    let flags = xflags::parse_or_exit! {
        /// auto (a CUDA device if there is one), host or cuda
        optional --executor executor: Executor
        /// The SVG file to draw; by default beside the program
        optional --out path: PathBuf
    };
    let config = match flags.executor.unwrap_or(Executor::Auto) {
        Executor::Auto => DeviceConfig::auto(),
        Executor::Host => DeviceConfig::host(0),
        Executor::Cuda => DeviceConfig::new(0),
    };
    let out = match flags.out {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("digits.svg"),
    };
    tokio::runtime::Runtime::new()?.block_on(run(config, &out))
}

async fn run(config: DeviceConfig, out: &Path) -> anyhow::Result<()> {
    let system = ActorSystem::create("quickstart", Default::default()).await?;
    let gpu = Device::open(&system, config).await?;
    println!("device {} ({}), executor: {}", gpu.label(), gpu.load().await.name, gpu.executor());
    for library in gpu.libraries() {
        println!("  {library}");
    }

    let digits = Digits::load()?;
    println!("{} images of 8 x 8 pixels", digits.len());
    let begin = Instant::now();
    let found = principal_components(&gpu, &digits, || kill_worker(&gpu)).await?;
    let seconds = begin.elapsed().as_secs_f64();

    report(&found, seconds);
    plot::draw(out, &found.scores, &digits.labels, &found.explained)?;
    println!("plot: {}", out.display());
    gpu.shutdown().await;
    Ok(())
}

/// What a crash does, at a time of our choosing.
fn kill_worker(gpu: &Device) -> anyhow::Result<()> {
    let pid = gpu.worker_pid().context("the device has no worker")?;
    println!("generation {}: killing worker {pid} (SIGKILL) in the middle of the iteration", gpu.generation());
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a process id")?;
    kill_process(pid, Signal::KILL).context("killing the worker")
}

fn report(found: &Components, seconds: f64) {
    match &found.interruption {
        Some(hit) => {
            if let Some(error) = &hit.error {
                println!("  step {}: {error}", hit.step);
            }
            let ms = hit.lost.as_secs_f64() * 1e3;
            println!("generation {}: same buffers, step {} done; time lost: {ms:.1} ms", hit.generations[1], hit.step);
        }
        None => println!("  nothing was lost"),
    }
    println!("explained variance, first {} components ({seconds:.2} s in all):", found.explained.len());
    let mut sum = 0.0;
    for (i, ratio) in found.explained.iter().enumerate() {
        sum += ratio;
        println!("  {:>2}  {ratio:.4}  (together {sum:.4})", i + 1);
    }
}
