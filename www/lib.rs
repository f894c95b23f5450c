//! The files of the vramscope page, compressed and embedded as constants.
//!
//! This crate only contains the files. It does not serve them (that is `vramscope-collector`) and
//! does not build them: `cargo xtask build` compiles the viewer and compresses the files.
//!
//! - [`PageFile`] is one file; [`files`] lists all of them.
//! - `standalone` (feature of the same name) makes one HTML file of them and of a recording.
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

use brotli_decompressor::Decompressor;
use flate2::Compression;
use flate2::read::GzEncoder;

#[cfg(page_on_disk)]
mod listing;
#[cfg(feature = "standalone")]
mod standalone;

#[cfg(feature = "standalone")]
pub use standalone::{StandaloneError, standalone, standalone_template};

/// A file of the vramscope page: its path on the server and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Path below the server's root, with forward slashes and without a leading one.
    pub path: &'static str,
    /// The file's bytes.
    pub content: Content,
}

/// The bytes of a page's file, plain or compressed.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Uncompressed bytes.
    Plain(&'static [u8]),
    /// Bytes compressed with brotli, which browsers accept over HTTPS and from their own machine.
    Brotli(&'static [u8]),
}

/// Size in bytes of the buffer for decompressing a file.
const BUFFER_BYTES: usize = 1 << 16;

impl PageFile {
    /// Returns the file's uncompressed bytes.
    ///
    /// # Errors
    /// Fails if the embedded brotli data is damaged.
    pub fn decompressed(&self) -> io::Result<Cow<'static, [u8]>> {
        match self.content {
            Content::Plain(bytes) => Ok(Cow::Borrowed(bytes)),
            Content::Brotli(compressed) => {
                let mut bytes = Vec::new();
                Decompressor::new(compressed, BUFFER_BYTES).read_to_end(&mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// Returns the file's bytes compressed with gzip, which browsers accept over plain HTTP, too.
    /// Each call compresses them: the viewer's 2 MB of WebAssembly in 22 ms to 1.03 MB, instead of
    /// 0.68 MB with brotli. Programs would be 1.9 MB larger if they contained both.
    ///
    /// # Errors
    /// Fails if the embedded brotli data is damaged.
    pub fn gzip(&self) -> io::Result<Vec<u8>> {
        let mut compressed = Vec::new();
        GzEncoder::new(&*self.decompressed()?, Compression::fast()).read_to_end(&mut compressed)?;
        Ok(compressed)
    }
}

/// The files of the page from the last `cargo xtask build`, compressed ones first; empty if there
/// was none. A static, because a constant would be copied into each crate that uses it.
#[cfg(not(page_on_disk))]
static BUILT: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/files.rs"));
/// The files of the page from the last `cargo xtask build`, read from `www/dist` on first use.
#[cfg(page_on_disk)]
static BUILT: std::sync::LazyLock<Vec<PageFile>> = std::sync::LazyLock::new(|| {
    let dist = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dist"));
    read_files(dist).unwrap_or_else(|error| panic!("{}: {error}", dist.display()))
});

/// Reads the files of the page in `dist` into memory, which is never freed.
#[cfg(page_on_disk)]
fn read_files(dist: &std::path::Path) -> io::Result<Vec<PageFile>> {
    let read = |file: listing::Listed| {
        let bytes = std::fs::read(&file.source)?.leak();
        let content = if file.is_brotli { Content::Brotli(bytes) } else { Content::Plain(bytes) };
        Ok(PageFile { path: file.path.leak(), content })
    };
    listing::list(dist)?.into_iter().map(read).collect()
}

/// The files of a page that was not built: a single `index.html` that says how to build it.
const NOT_BUILT: &[PageFile] = &[PageFile {
    path: "index.html",
    content: Content::Plain(
        b"<!doctype html><meta charset=\"utf-8\"><title>vramscope</title>\
          <p>This program was built without the vramscope page. Run <code>cargo xtask build</code>, \
          then build and start the program again.</p>\n",
    ),
}];

/// Returns all files of the page. Debug builds of the repository read them from `www/dist` on the
/// first call; all other builds contain them.
///
/// If the page was not built before, the only file is an `index.html` that says so.
#[must_use]
pub fn files() -> &'static [PageFile] {
    if BUILT.is_empty() { NOT_BUILT } else { &BUILT }
}

#[cfg(test)]
mod tests {
    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn files_have_their_bytes_in_each_encoding() {
        for file in files() {
            let bytes = file.decompressed().expect("undamaged data");
            let mut from_gzip = Vec::new();
            GzDecoder::new(&*file.gzip().expect("undamaged data")).read_to_end(&mut from_gzip).expect("gzip");
            assert!(from_gzip == *bytes && !bytes.is_empty(), "{}", file.path);
        }
        let damaged = PageFile { path: "damaged", content: Content::Brotli(b"no brotli") };
        assert!(damaged.decompressed().is_err() && damaged.gzip().is_err());
    }
}
