//! Injects faults under load and says what came of it.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use atomr_cuda::prelude::*;
use failover::{Options, run};

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

/// `--spare`.
#[derive(Debug, Clone, Copy)]
struct Spare(SparePolicy);

impl FromStr for Spare {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "warm" => Ok(Spare(SparePolicy::Warm)),
            "cold" => Ok(Spare(SparePolicy::Cold)),
            _ => Err("expected warm or cold".into()),
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    atomr_cuda::worker::init();
    let flags = xflags::parse_or_exit! {
        /// auto (a CUDA device if there is one), host or cuda
        optional --executor executor: Executor
        /// Whether a second worker stands by: warm (default) or cold
        optional --spare spare: Spare
        /// Faults to inject; 100 by default
        optional --faults count: usize
        /// Clients that work at the same time; 8 by default
        optional --clients count: usize
        /// Where random numbers start; 1 by default
        optional --seed seed: u64
        /// Mean milliseconds between a fail-over and the next fault; 25 by default
        optional --pause-ms milliseconds: u64
        /// Wait before each fault until a spare stands by
        optional --await-spare
        /// Kinds of faults, separated by commas, as `trap,signal`; all that the executor knows by default
        optional --kinds names: String
        /// Print one line of JSON and nothing else
        optional --json
    };
    let config = match flags.executor.unwrap_or(Executor::Auto) {
        Executor::Auto => DeviceConfig::auto(),
        Executor::Host => DeviceConfig::host(0),
        Executor::Cuda => DeviceConfig::new(0),
    };
    let spare = flags.spare.map_or(SparePolicy::Warm, |spare| spare.0);
    let mut options = Options::new(config.spare(spare));
    options.faults = flags.faults.unwrap_or(options.faults);
    options.clients = flags.clients.unwrap_or(options.clients);
    options.seed = flags.seed.unwrap_or(options.seed);
    options.pause = flags.pause_ms.map_or(options.pause, Duration::from_millis);
    options.await_spare = flags.await_spare;
    options.kinds = flags.kinds.map(|names| names.split(',').map(str::to_lowercase).collect());
    options.progress = !flags.json;

    let report = tokio::runtime::Runtime::new()?.block_on(run(&options))?;
    if flags.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
