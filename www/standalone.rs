//! The page with a recording in it, as one HTML file that a browser opens from disk, without a
//! server or network access.
//!
//! Style and script become inline elements, which the
//! document's content security policy allows by their hashes and nothing else. The WebAssembly of
//! viewer, importer and analyzer (gzip) and the recording are base64 text in elements that a
//! browser does not execute.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use crate::PageFile;

/// The script that starts the viewer in an exported HTML page.
const LOADER: &str = include_str!("loader.js");

/// Why the page cannot be one file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StandaloneError(String);

impl StandaloneError {
    /// Creates an error with this text.
    fn new(text: impl Display) -> Self {
        Self(text.to_string())
    }
}

/// The result of a function of this module.
type Result<T> = std::result::Result<T, StandaloneError>;

/// Returns the page with a recording called `name` in it, as one HTML document; `files` are those
/// of the page.
///
/// # Errors
/// If a file of the page is missing or damaged.
pub fn standalone(files: &[PageFile], name: &str, recording: &[u8]) -> Result<String> {
    PageFiles::read(files)?.embed(name, recording, Compression::best())
}

/// Returns the page as one HTML document in which the recording is empty and has no name: the page
/// itself inserts both.
///
/// # Errors
/// If a file of the page is missing or damaged.
pub fn standalone_template(files: &[PageFile]) -> Result<String> {
    PageFiles::read(files)?.embed("", b"", Compression::fast())
}

/// The contents of the viewer's files that an exported page contains: document, style, icon, script
/// and WebAssembly.
struct PageFiles<'a> {
    index: Cow<'a, str>,
    style: Cow<'a, str>,
    icon: Cow<'a, [u8]>,
    /// The JavaScript that wasm-bindgen generated for the viewer.
    bindings: Cow<'a, str>,
    wasm: Cow<'a, [u8]>,
    /// The part of the viewer's WebAssembly that it loads after its first picture.
    later_wasm: Cow<'a, [u8]>,
    /// The importer, which converts files of other formats, and the analyzer, which computes over
    /// the whole recording.
    workers: [PageWorker<'a>; 2],
}

/// The files of a worker that the page starts when it needs it.
struct PageWorker<'a> {
    /// Name in the ids of the page's elements.
    name: &'static str,
    /// The worker's script.
    script: Cow<'a, str>,
    /// The JavaScript that wasm-bindgen generated for it.
    bindings: Cow<'a, str>,
    wasm: Cow<'a, [u8]>,
}

/// The line of the document that makes the page installable. It is removed: installing needs a
/// server.
const MANIFEST_LINE: &str = "<link rel=\"manifest\" href=\"./manifest.webmanifest\" crossorigin=\"use-credentials\">\n";

/// The lines of the page's HTML that load its style sheets.
const STYLE_LINES: &str =
    "<link rel=\"stylesheet\" href=\"./style.css\">\n<link rel=\"stylesheet\" href=\"./panels.css\">\n";

impl PageWorker<'static> {
    /// Reads the files of the worker `name`; `text` and `bytes` return the file at a path.
    fn read(
        name: &'static str,
        text: impl Fn(&str) -> Result<Cow<'static, str>>,
        bytes: impl Fn(&str) -> Result<Cow<'static, [u8]>>,
    ) -> Result<Self> {
        Ok(Self {
            name,
            script: text(&format!("{name}.js"))?,
            bindings: text(&format!("pkg/vramscope_{name}.js"))?,
            wasm: bytes(&format!("pkg/vramscope_{name}_bg.wasm"))?,
        })
    }
}

impl PageWorker<'_> {
    /// Returns the worker's script with the generated JavaScript in place of the line that imports
    /// it, as one module.
    fn module(&self) -> Result<String> {
        let name = self.name;
        let end = format!("}} from \"./pkg/vramscope_{name}.js\";\n");
        let parts = self.script.split_once("import init, {").and_then(|(before, rest)| {
            let (names, after) = rest.split_once(&*end)?;
            (!names.contains('\n')).then_some((before, after))
        });
        let (before, after) = parts.ok_or_else(|| {
            StandaloneError::new(format_args!("the page's {name}.js lacks the line that ends with {end}"))
        })?;
        Ok(format!("{before}{}\nconst init = __wbg_init;\n{after}", self.bindings))
    }
}

impl PageFiles<'static> {
    /// Reads the viewer's files from `files`. Returns an error if one is missing.
    fn read(files: &[PageFile]) -> Result<Self> {
        let bytes = |path: &str| {
            let file = files.iter().find(|file| file.path == path).ok_or_else(|| {
                StandaloneError::new("this vramscope was built without the page; build it with `cargo xtask build`")
            })?;
            file.decompressed().map_err(|error| StandaloneError::new(format_args!("page file {path}: {error}")))
        };
        let text = |path: &str| {
            String::from_utf8(bytes(path)?.into_owned())
                .map(Cow::Owned)
                .map_err(|error| StandaloneError::new(format_args!("page file {path}: {error}")))
        };
        Ok(Self {
            wasm: bytes("pkg/vramscope_viewer_bg.wasm")?,
            later_wasm: bytes("pkg/vramscope_viewer_later_bg.wasm")?,
            bindings: text("pkg/vramscope_viewer.js")?,
            index: text("index.html")?,
            style: format!("{}{}", text("style.css")?, text("panels.css")?).into(),
            icon: bytes("icon.svg")?,
            workers: [PageWorker::read("importer", text, bytes)?, PageWorker::read("analyzer", text, bytes)?],
        })
    }
}

impl PageFiles<'_> {
    /// Returns the viewer as one HTML document that contains a recording called `name`; `effort` is
    /// that of compressing the WebAssembly.
    fn embed(&self, name: &str, recording: &[u8], effort: Compression) -> Result<String> {
        let script = format!("{}\n{LOADER}", self.bindings);
        let modules = [self.workers[0].module()?, self.workers[1].module()?];
        let of_workers = modules.iter().map(|module| ("script of a worker", module.as_str(), "</script"));
        let others = [("script", script.as_str(), "</script"), ("style", self.style.as_ref(), "</style")];
        for (what, text, end_tag) in others.into_iter().chain(of_workers) {
            let text = text.to_ascii_lowercase();
            if text.contains(end_tag) || text.contains("<!--") {
                return Err(StandaloneError::new(format_args!(
                    "the page's {what} contains {end_tag} or <!--, so it cannot be an inline element"
                )));
            }
        }
        let icon = format!("\"data:image/svg+xml;base64,{}\"", BASE64.encode(&self.icon));
        let policy = format!(
            "default-src 'none'; script-src '{}' 'wasm-unsafe-eval'; style-src '{}'; img-src data: blob:; \
             worker-src blob:; base-uri 'none'; form-action 'none'",
            csp_hash(&script),
            csp_hash(&self.style)
        );
        let worker = |(worker, module): (&PageWorker<'_>, &String)| {
            let (name, wasm) = (worker.name, BASE64.encode(gzip(&worker.wasm, effort)));
            format!(
                "<script type=\"application/wasm\" id=\"{name}-wasm\">{wasm}</script>\n\
                 <script type=\"text/plain\" id=\"{name}-script\">{module}</script>\n"
            )
        };
        let workers: String = self.workers.iter().zip(&modules).map(worker).collect();
        let body_end = format!(
            "<script type=\"application/wasm\" id=\"viewer-wasm\">{}</script>\n\
             <script type=\"application/wasm\" id=\"viewer-later-wasm\">{}</script>\n{workers}\
             <script type=\"application/octet-stream\" id=\"recording\" data-name=\"{}\">{}</script>\n\
             <script type=\"module\">{script}</script>\n</body>",
            BASE64.encode(gzip(&self.wasm, effort)),
            BASE64.encode(gzip(&self.later_wasm, effort)),
            escape_html(name),
            BASE64.encode(recording)
        );
        let charset = "<meta charset=\"utf-8\">";
        let policy = format!("{charset}\n<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
        let replacements = [
            (charset, policy),
            ("<title>vramscope</title>", format!("<title>{} · vramscope</title>", escape_html(name))),
            (MANIFEST_LINE, String::new()),
            (STYLE_LINES, format!("<style>{}</style>\n", self.style)),
            ("<script type=\"module\" src=\"./main.js\"></script>\n", String::new()),
            ("\"./icon.svg\"", icon),
            ("</body>", body_end),
        ];
        replace_all(&self.index, &replacements)
            .map_err(|missing| StandaloneError::new(format_args!("the page's index.html lacks {missing}")))
    }
}

/// Replaces every occurrence of each pattern in one pass, so that patterns within inserted text are
/// not replaced. The error is a pattern that does not occur in `text`.
fn replace_all<'p>(text: &str, replacements: &[(&'p str, String)]) -> std::result::Result<String, &'p str> {
    let mut matches = Vec::new();
    for (pattern, replacement) in replacements {
        let before = matches.len();
        matches.extend(text.match_indices(pattern).map(|(start, _)| (start, pattern.len(), replacement)));
        if matches.len() == before {
            return Err(pattern);
        }
    }
    matches.sort_unstable();
    let (mut out, mut copied) = (String::new(), 0);
    for (start, length, replacement) in matches {
        out.push_str(&text[copied..start]);
        out.push_str(replacement);
        copied = start + length;
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Returns the hash by which a content security policy allows exactly this inline script or style.
fn csp_hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text.as_bytes())))
}

/// Compresses bytes with gzip, without a time stamp, so that equal input gives equal output.
fn gzip(bytes: &[u8], effort: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), effort);
    let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    compressed.expect("writing to memory does not fail")
}

/// Escapes text for an attribute or an element's content.
fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\0' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "standalone_tests.rs"]
mod tests;
