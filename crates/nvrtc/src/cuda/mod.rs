//! NVRTC, loaded machine code, and the executor half that launches it.

mod module;
mod module_cache;
pub(crate) mod nvrtc;

pub use module::{Kernel, KernelAttributes, LaunchConfig, Module};
pub use module_cache::ModuleCache;
