//! NVRTC, loaded machine code, and the executor half that launches it.

mod half;
mod limits;
mod module;
mod module_cache;
pub(crate) mod nvrtc;
mod program;

pub(crate) use half::new;
pub use module::{Kernel, KernelAttributes, LaunchConfig, Module};
pub use module_cache::ModuleCache;
