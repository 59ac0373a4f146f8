//! A short run on every executor there is.

use std::time::Duration;

use atomr_cuda::prelude::*;
use failover::{Options, run};

#[tokio::test(flavor = "multi_thread")]
async fn ten_faults_lose_nothing() -> anyhow::Result<()> {
    let mut devices = vec![DeviceConfig::host(0), DeviceConfig::host(0).spare(SparePolicy::Cold)];
    match DeviceConfig::auto() {
        cuda if cuda.executor == Some(ExecutorKind::Cuda) => devices.push(cuda),
        _ => println!("ten_faults_lose_nothing on cuda: skipped: no CUDA device"),
    }
    for config in devices {
        // A test's `main` is not ours to call `worker::init` in; the program's is.
        let config = config.worker_executable(worker());
        let options = Options { faults: 10, clients: 4, pause: Duration::from_millis(10), ..Options::new(config) };
        let report = run(&options).await?;
        println!("{report}");
        assert_eq!((report.lost_replies, report.wrong_results), (0, 0));
        assert_eq!((report.recovered, report.surviving_buffers_damaged), (10, 0));
        assert!(report.surviving_buffers_checked > 0 && report.jobs > 0);
        assert_eq!(report.device_bytes_after, report.device_bytes_before);
        assert!(report.passed());
    }
    Ok(())
}

/// The example's program, also where the tests run from an archive.
fn worker() -> std::path::PathBuf {
    let archived = std::env::var_os("NEXTEST_BIN_EXE_failover");
    archived.unwrap_or_else(|| env!("CARGO_BIN_EXE_failover").into()).into()
}
