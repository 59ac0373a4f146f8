//! Principal components of 1,797 handwritten digits, computed on a device whose worker is killed
//! half-way.
//!
//! `data` reads the digits, `pca` computes on the device, `plot` draws. The program is `main.rs`.
#![forbid(unsafe_code)]

pub mod data;
pub mod pca;
pub mod plot;

pub use data::Digits;
pub use pca::{Components, Interruption, principal_components};
