//! The example against numpy, with and without the loss of a worker.

use anyhow::Context;
use atomr_core::actor::ActorSystem;
use atomr_cuda::prelude::*;
use quickstart::{Components, Digits, plot, principal_components};
use rustix::process::{Pid, Signal, kill_process};

/// numpy 2.4.6: `s = np.linalg.svd(x - x.mean(0), compute_uv=False); s**2 / (s**2).sum()`.
const NUMPY: [f64; 10] = [
    0.14890594, 0.13618771, 0.11794594, 0.08409979, 0.05782415, 0.0491691, 0.04315987, 0.03661373, 0.03353248,
    0.03078806,
];

/// The host executor always, CUDA where there is a device.
fn executors() -> Vec<DeviceConfig> {
    match DeviceConfig::auto() {
        cuda if cuda.executor == Some(ExecutorKind::Cuda) => vec![DeviceConfig::host(0), cuda],
        host => {
            println!("explained_variance on cuda: skipped: no CUDA device");
            vec![host]
        }
    }
}

async fn components(config: DeviceConfig, kill: bool) -> anyhow::Result<Components> {
    let system = ActorSystem::create("test", Default::default()).await?;
    // A test's `main` is not ours to call `worker::init` in; the program's is.
    let gpu = Device::open(&system, config.worker_executable(worker())).await?;
    let found = principal_components(&gpu, &Digits::load()?, || {
        if kill {
            let pid = gpu.worker_pid().and_then(|pid| Pid::from_raw(pid as i32)).context("no worker")?;
            kill_process(pid, Signal::KILL)?;
        }
        Ok(())
    })
    .await?;
    gpu.shutdown().await;
    Ok(found)
}

fn assert_as_numpy(explained: &[f64]) {
    assert_eq!(explained.len(), NUMPY.len());
    for (i, (found, expected)) in explained.iter().zip(NUMPY).enumerate() {
        let relative = (found / expected - 1.0).abs();
        assert!(relative < 5e-5, "component {}: {found} instead of {expected}", i + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agrees_with_numpy() -> anyhow::Result<()> {
    for config in executors() {
        let found = components(config, false).await?;
        assert_as_numpy(&found.explained);
        assert!(found.interruption.is_none());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agrees_with_numpy_after_a_kill() -> anyhow::Result<()> {
    for config in executors() {
        let found = components(config, true).await?;
        assert_as_numpy(&found.explained);
        let hit = found.interruption.context("the kill went unnoticed")?;
        assert_eq!(hit.step, quickstart::pca::STEPS / 2);
        assert!(hit.generations[1] > hit.generations[0], "{hit:?}");
    }
    Ok(())
}

#[test]
fn draws_one_point_an_image() -> anyhow::Result<()> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits.svg");
    plot::draw(&path, &[[1.0, 2.0], [-3.0, 0.5], [0.0, -1.0]], &[0, 9, 4], &[0.15, 0.14])?;
    let svg = std::fs::read_to_string(path)?;
    // Three points and the ten of the legend.
    assert_eq!(svg.matches("<circle").count(), 13);
    assert!(svg.contains("component 1 (15.0% of the variance)"));
    Ok(())
}

/// The example's program, also where the tests run from an archive.
fn worker() -> std::path::PathBuf {
    let archived = std::env::var_os("NEXTEST_BIN_EXE_quickstart");
    archived.unwrap_or_else(|| env!("CARGO_BIN_EXE_quickstart").into()).into()
}
