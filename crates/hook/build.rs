//! Links the library so that `dlclose` does not unload it: PyTorch calls its tracker, and its
//! threads run its code, until the process ends.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
