//! The page's files, which whoever builds the binary embeds.

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

impl Assets {
    /// The file at `path` and its media type. Only what is in the table can be had: no path leads anywhere else.
    pub(super) fn get(self, path: &str) -> Option<(&'static str, &'static [u8])> {
        let path = if path.is_empty() { "index.html" } else { path };
        let asset = self.0.iter().find(|asset| asset.path == path)?;
        let (_, extension) = path.rsplit_once('.')?;
        let (_, media_type) = MEDIA_TYPES.iter().find(|(known, _)| *known == extension)?;
        Some((media_type, asset.bytes))
    }
}
