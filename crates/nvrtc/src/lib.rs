//! NVRTC for `atomr-cuda`.

pub mod compiler;
mod cuda;

pub use compiler::{Architecture, Source};
