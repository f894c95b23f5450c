//! Links the library so that `dlclose` does not unload it: PyTorch calls its tracker, and its
//! threads run its code, until the process ends. Lets the tests be linked with the Python module.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Zig's linker has no such option, and links no tests: see `cargo xtask wheel`.
    let is_zig = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zigcc"));
    if env::var_os("CARGO_FEATURE_PYTHON").is_some() && !is_zig {
        // Python's C functions are undefined symbols here: the interpreter that loads the module
        // provides them, and no test calls them.
        println!("cargo::rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
    }
}
