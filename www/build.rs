//! Writes the table of the page's files that `lib.rs` embeds.
//!
//! Without `dist/` the table is empty: the crate was built from a clone before `cargo xtask build`.
//! Builds of the repository with debug assertions read the page at run time instead, so that a
//! change of the page compiles none of the crates that use this one again.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

mod listing;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(page_on_disk)");
    println!("cargo::rerun-if-changed=build.rs");
    let www = env::var("CARGO_MANIFEST_DIR")?;
    let www = Path::new(&www);
    if env::var_os("CARGO_CFG_DEBUG_ASSERTIONS").is_some() && www.join("../xtask").is_dir() {
        println!("cargo::rustc-cfg=page_on_disk");
        return Ok(());
    }
    let dist = www.join("dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut table = String::from("&[\n");
    for file in listing::list(&dist)? {
        let content = if file.is_brotli { "Brotli" } else { "Plain" };
        let (path, source) = (file.path, file.source);
        writeln!(table, "    PageFile {{ path: {path:?}, content: Content::{content}(include_bytes!({source:?})) }},")?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("files.rs"), table)?;
    Ok(())
}
