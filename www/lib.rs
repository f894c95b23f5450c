//! The vramscope page: every file of it, compressed, as constants.
//!
//! This crate holds bytes and nothing else. It does not serve them (that is `vramscope-collector`)
//! and does not build them: `cargo xtask build` compiles the viewer and compresses the files.
//!
//! - [`PageFile`] is one file; [`files`] lists all of them.
//!
//! ```
//! for file in vramscope_page::files() {
//!     assert!(file.brotli.len() <= file.gzip.len() + 64, "{}", file.path);
//! }
//! ```
#![forbid(unsafe_code)]

/// One file of the page, in the two encodings that browsers accept.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Path below the server's root, with forward slashes and without a leading one.
    pub path: &'static str,
    /// Content, compressed with brotli.
    pub brotli: &'static [u8],
    /// Content, compressed with gzip.
    pub gzip: &'static [u8],
}

/// Returns every file of the page, by path. It is empty if the crate was built before the page.
#[must_use]
pub const fn files() -> &'static [PageFile] {
    include!(concat!(env!("OUT_DIR"), "/files.rs"))
}
