//! Gathers the page's files, so that whatever embeds the collector holds all of it and needs nothing beside it.
//!
//! Without the viewer's wasm there is no page to serve: the table is then empty, and the server says how to build it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What a browser asks for. Anything else in the folder is not for it.
const EXTENSIONS: &[&str] = &["css", "html", "ico", "js", "json", "png", "svg", "ttf", "wasm", "webmanifest", "woff2"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().and_then(|extension| extension.to_str()).is_some_and(|it| EXTENSIONS.contains(&it)) {
            found.push(path);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("..").join("www").canonicalize()?;
    println!("cargo::rerun-if-changed={}", page.display());
    let mut found = Vec::new();
    files(&page, &mut found)?;
    found.sort();
    let is_wasm = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "wasm");
    if !found.iter().any(is_wasm) || !page.join("index.html").is_file() {
        found.clear();
    }
    let mut table = String::from("&[\n");
    for path in &found {
        let name = path.strip_prefix(&page)?.to_str().ok_or("a file name that is not Unicode")?.replace('\\', "/");
        let bytes = path.to_str().ok_or("a path that is not Unicode")?;
        writeln!(table, "    Asset {{ path: {name:?}, bytes: include_bytes!({bytes:?}) }},")?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("assets.rs"), table)?;
    Ok(())
}
