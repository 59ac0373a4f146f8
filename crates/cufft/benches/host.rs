//! The host half beside the crate it stands on, in one run. Prints one JSON line a benchmark.

use atomr_cuda_core::{Complex, DeviceConfig, EnabledLibraries};
use atomr_cuda_cufft::{Fft, FftOptions};
use atomr_cuda_testing::compare::{Side, compare};
use atomr_cuda_testing::{open, random, seeded};
use tokio::runtime::Runtime;

fn main() {
    atomr_cuda_core::worker::init();
    let runtime = Runtime::new().expect("a tokio runtime");
    let device = runtime.block_on(open(DeviceConfig::host(0).libraries(EnabledLibraries::CUFFT)));
    for (length, batch) in [(4096, 256), (1 << 20, 1), (1000, 1000)] {
        let x: Vec<Complex<f32>> = random(&mut seeded(1), length * batch);
        let dx = runtime.block_on(device.upload(&x)).expect("room");
        let dy = runtime.block_on(device.alloc::<Complex<f32>>(length * batch)).expect("room");
        let plan = rustfft::FftPlanner::new().plan_fft_forward(length);
        let (mut y, mut scratch) = (x.clone(), vec![Complex::default(); plan.get_immutable_scratch_len()]);
        let sides = vec![
            Side::batch("atomr-cuda", 1, || {
                device.fft(&dx, &dy).shape(&[length]).batch(batch).wait().expect("transforms")
            })
            .at_most(1.1),
            Side::batch("rustfft, one thread", 1, || plan.process_immutable_with_scratch(&x, &mut y, &mut scratch)),
        ];
        compare(&format!("host: c2c f32, {batch} of {length}"), 30, sides);
    }
    runtime.block_on(device.shutdown());
}
