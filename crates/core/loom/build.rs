//! Compiles the ring with loom's atomics, without touching any other crate.

fn main() {
    println!("cargo:rustc-cfg=loom");
}
