//! The worker executable for programs that cannot call `atomr_cuda::worker::init`. It knows the
//! libraries that the facade was built with.

fn main() {
    atomr_cuda::worker::init();
    eprintln!("atomr-cuda-worker is started by a device (`DeviceConfig::worker_executable`), not by hand");
    std::process::exit(2);
}
