//! Compiles the ring with the atomics of loom.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=vramscope_loom");
}
