//! Core's shared-memory ring, compiled with loom's atomics so that every interleaving is tried.

#[path = "../../src/worker/ring.rs"]
pub mod ring;
