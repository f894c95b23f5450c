//! Writes the table of the page's files that `lib.rs` embeds.
//!
//! Without `dist/` the table is empty: the crate was built from a clone before `cargo xtask build`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect_files(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let dist = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    if dist.is_dir() {
        collect_files(&dist, &mut files)?;
    }
    files.sort();
    let mut table = String::from("&[\n");
    let path_of = |file: &Path| -> Result<String, Box<dyn Error>> {
        let path = file.strip_prefix(&dist)?.to_str().ok_or("a file name is not Unicode")?;
        Ok(path.replace('\\', "/"))
    };
    let has_extension = |path: &Path, wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
    for brotli in files.iter().filter(|path| has_extension(path, "br")) {
        let path = path_of(&brotli.with_extension(""))?;
        writeln!(table, "    PageFile {{ path: {path:?}, content: Content::Brotli(include_bytes!({brotli:?})) }},")?;
    }
    // Recordings are compressed by their format.
    for recording in files.iter().filter(|path| has_extension(path, "vram")) {
        let path = path_of(recording)?;
        writeln!(table, "    PageFile {{ path: {path:?}, content: Content::Plain(include_bytes!({recording:?})) }},")?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("files.rs"), table)?;
    Ok(())
}
