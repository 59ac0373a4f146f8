//! A hundred faults of every kind on the host executor, some on the others there are.

use std::time::Duration;

use atomr_cuda::prelude::*;
use failover::{Options, run};

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_every_kind_lose_nothing() -> anyhow::Result<()> {
    let mut devices = vec![(100, DeviceConfig::host(0)), (10, DeviceConfig::host(0).spare(SparePolicy::Cold))];
    match DeviceConfig::auto() {
        cuda if cuda.executor == Some(ExecutorKind::Cuda) => devices.push((10, cuda)),
        _ => println!("faults_of_every_kind_lose_nothing on cuda: skipped: no CUDA device"),
    }
    for (faults, config) in devices {
        // A test's `main` is not ours to call `worker::init` in; the program's is.
        let config = config.worker_executable(worker());
        let options = Options { faults, clients: 8, pause: Duration::from_millis(10), ..Options::new(config) };
        let report = run(&options).await?;
        println!("{report}");
        assert_eq!((report.lost_replies, report.wrong_results), (0, 0));
        assert_eq!((report.recovered, report.surviving_buffers_damaged), (faults, 0));
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
