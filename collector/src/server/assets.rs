//! The page's files, embedded when this crate is built, so that a program that listens needs nothing beside it.

/// One file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its path below the server's root, with forward slashes and no leading one.
    pub path: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

/// The page: every file that a browser may ask for. `index.html` is what it gets at the root.
#[derive(Clone, Copy, Debug)]
pub struct Assets(pub &'static [Asset]);

/// The media types by file extension. A file of any other kind is no part of the page.
const MEDIA_TYPES: &[(&str, &str)] = &[
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("ttf", "font/ttf"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("woff2", "font/woff2"),
];

/// Every file of the page, where it was built before this crate was.
const BUILT: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// What is served in the page's place.
const NOT_BUILT: &[Asset] = &[Asset {
    path: "index.html",
    bytes: b"<!doctype html><meta charset=\"utf-8\"><title>vramscope</title>\
        <p>This vramscope was built without its page. Run <code>cargo xtask build</code> and start it again.</p>\n",
}];

impl Assets {
    /// The page as it was when this crate was built; where it had not been built, a page that says so.
    #[must_use]
    pub const fn page() -> Self {
        Self(if BUILT.is_empty() { NOT_BUILT } else { BUILT })
    }

    /// The file at `path` and its media type. Only what is in the table can be had: no path leads anywhere else.
    pub(super) fn get(self, path: &str) -> Option<(&'static str, &'static [u8])> {
        let path = if path.is_empty() { "index.html" } else { path };
        let asset = self.0.iter().find(|asset| asset.path == path)?;
        let (_, extension) = path.rsplit_once('.')?;
        let (_, media_type) = MEDIA_TYPES.iter().find(|(known, _)| *known == extension)?;
        Some((media_type, asset.bytes))
    }
}
