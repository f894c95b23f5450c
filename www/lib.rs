//! The vramscope page: every file of it, compressed, as constants.
//!
//! This crate holds bytes and nothing else. It does not serve them (that is `vramscope-collector`)
//! and does not build them: `cargo xtask build` compiles the viewer and compresses the files.
//!
//! - [`PageFile`] is one file; [`files`] lists all of them.
//!
//! ```
//! let index = vramscope_page::files().iter().find(|file| file.path == "index.html");
//! let html = index.expect("every page has an index").decompressed()?;
//! assert!(html.starts_with(b"<!doctype html>"));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::{self, Read as _};

use flate2::read::GzDecoder;

/// A file of the vramscope page: its path on the server and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Path below the server's root, with forward slashes and without a leading one.
    pub path: &'static str,
    /// The file's bytes.
    pub content: Content,
}

/// The bytes of a page's file, plain or in the two encodings that browsers accept.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Uncompressed bytes.
    Plain(&'static [u8]),
    /// The same bytes compressed twice.
    Compressed {
        /// Compressed with brotli, the smaller one.
        brotli: &'static [u8],
        /// Compressed with gzip, for browsers that do not accept brotli over plain HTTP.
        gzip: &'static [u8],
    },
}

impl PageFile {
    /// Returns the file's uncompressed bytes.
    ///
    /// # Errors
    /// Fails if the embedded gzip data is damaged.
    pub fn decompressed(&self) -> io::Result<Cow<'static, [u8]>> {
        match self.content {
            Content::Plain(bytes) => Ok(Cow::Borrowed(bytes)),
            Content::Compressed { gzip, .. } => {
                let mut bytes = Vec::new();
                GzDecoder::new(gzip).read_to_end(&mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

/// The files of the page as `cargo xtask build` made them, compressed ones first; empty if the page
/// was not built. If this were a constant, a program would contain the bytes once for each crate
/// that uses them.
static BUILT: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The only file if this crate was built before the page: an `index.html` that says how to build
/// the page.
const NOT_BUILT: &[PageFile] = &[PageFile {
    path: "index.html",
    content: Content::Plain(
        b"<!doctype html><meta charset=\"utf-8\"><title>vramscope</title>\
          <p>This program was built without the vramscope page. Run <code>cargo xtask build</code>, \
          then build and start the program again.</p>\n",
    ),
}];

/// Returns every file of the page.
///
/// If the crate was built before the page, the only file is an `index.html` that says so;
/// [`is_built`] tells.
#[must_use]
pub const fn files() -> &'static [PageFile] {
    if is_built() { BUILT } else { NOT_BUILT }
}

/// Returns true if this crate contains the page.
#[must_use]
pub const fn is_built() -> bool {
    !BUILT.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    // `MAX_WIRE_BYTES` and `MAX_FLEET_WIRE_BYTES`.
    include!("budgets.rs");
    /// Files that the page loads later, when it needs them: the gallery, the importer, the
    /// analyzer, and the script that keeps the page for use without the server. Or never: those of
    /// the fleet page.
    const LATER_FILES: [&str; 11] = [
        "analyzer.js",
        "examples/",
        "fleet/",
        "gallery.",
        "importer.js",
        "pkg/vramscope_analyzer.js",
        "pkg/vramscope_analyzer_bg.wasm",
        "pkg/vramscope_fleet_page",
        "pkg/vramscope_importer.js",
        "pkg/vramscope_importer_bg.wasm",
        "sw.js",
    ];
    /// Files that opening the fleet page transfers.
    const FLEET_FILES: [&str; 4] = ["fleet/", "icon.svg", "pkg/vramscope_fleet_page", "style.css"];

    fn is_one_of(path: &str, files: &[&str]) -> bool {
        files.iter().any(|file| path.starts_with(file))
    }

    #[test]
    fn pages_fit_their_transfer_budgets() {
        let check = |page: &str, is_transferred: fn(&str) -> bool, most: u64| {
            let bytes = |file: &PageFile| match file.content {
                Content::Plain(bytes) => bytes.len() as u64,
                Content::Compressed { brotli, .. } => brotli.len() as u64,
            };
            let total: u64 = files().iter().filter(|file| is_transferred(file.path)).map(bytes).sum();
            println!("{page}: {total} bytes with brotli, built: {}", is_built());
            assert!(total <= most, "{page} is {total} bytes, more than {most}");
        };
        check("page", |path| !is_one_of(path, &LATER_FILES), MAX_WIRE_BYTES);
        check("fleet page", |path| is_one_of(path, &FLEET_FILES), MAX_FLEET_WIRE_BYTES);
    }
}
