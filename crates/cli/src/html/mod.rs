//! `vramscope export --to html`: the viewer's page with its program, its style and a recording in it, in one file that any browser
//! opens from a disk, with no server and no network.
//!
//! The page is the one that is served, as it was when this binary was built. Its files become part of the document: the style and the
//! script as text, which the document's own content-security policy allows by their hashes and nothing else; the viewer's program
//! packed with gzip and the recording as it is, both in base64 in elements that a browser does not run.

use std::io::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use vramscope_collector::Assets;

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::output::Output;
use crate::screen;
use crate::units;

/// What starts the viewer in such a file.
const LOADER: &str = include_str!("loader.js");

/// Writes the page with the recording that `input` is, and says what came of it.
pub(crate) fn export(input: Input, output: &Path) -> Outcome {
    let name = format!("{}.vram", input.name());
    let mut recording = Vec::new();
    let events = input.convert(|piece| {
        recording.extend_from_slice(piece);
        Ok(())
    })?;
    let page = Parts::of(Assets::page())?.page(&name, &recording)?;
    let mut file = Output::create(output)?;
    file.goes_on_signal()?;
    file.write(page.as_bytes()).map_err(|error| Failure::file(output, error))?;
    file.finish()?;
    let events = units::counted(events, "event", "events");
    let (whole, own) = (units::bytes(page.len() as u64), units::bytes(recording.len() as u64));
    screen::note(format_args!("{}: {events} in {whole}, {own} of them the recording's own", output.display()));
    Ok(())
}

/// The page's files.
struct Parts<'a> {
    index: &'a str,
    style: &'a str,
    icon: &'a [u8],
    glue: &'a str,
    wasm: &'a [u8],
}

impl Parts<'static> {
    fn of(assets: Assets) -> Outcome<Self> {
        let bytes = |path: &str| {
            let asset = assets.0.iter().find(|asset| asset.path == path);
            asset.map(|asset| asset.bytes).ok_or_else(|| {
                Failure::new("this vramscope was built without its page; run `cargo xtask build` and use the binary that it makes")
            })
        };
        let text = |path: &str| {
            str::from_utf8(bytes(path)?).map_err(|error| Failure::new(format_args!("the page's {path}: {error}")))
        };
        Ok(Self {
            wasm: bytes("pkg/vramscope_viewer_bg.wasm")?,
            glue: text("pkg/vramscope_viewer.js")?,
            index: text("index.html")?,
            style: text("style.css")?,
            icon: bytes("icon.svg")?,
        })
    }
}

impl Parts<'_> {
    /// The page with a recording called `name` in it.
    fn page(&self, name: &str, recording: &[u8]) -> Outcome<String> {
        let script = format!("{}\n{LOADER}", self.glue);
        for (what, text, end) in [("script", script.as_str(), "</script"), ("style", self.style, "</style")] {
            let text = text.to_ascii_lowercase();
            if text.contains(end) || text.contains("<!--") {
                return Err(Failure::new(format_args!(
                    "the page's {what} cannot stand in a document: it would end there"
                )));
            }
        }
        let icon = format!("\"data:image/svg+xml;base64,{}\"", BASE64.encode(self.icon));
        let policy = format!(
            "default-src 'none'; script-src '{}' 'wasm-unsafe-eval'; style-src '{}'; img-src data: blob:; base-uri 'none'; \
             form-action 'none'",
            hash(&script),
            hash(self.style)
        );
        let end = format!(
            "<script type=\"application/wasm\" id=\"viewer-wasm\">{}</script>\n\
             <script type=\"application/octet-stream\" id=\"recording\" data-name=\"{}\">{}</script>\n\
             <script type=\"module\">{script}</script>\n</body>",
            BASE64.encode(packed(self.wasm)),
            escaped(name),
            BASE64.encode(recording)
        );
        let charset = "<meta charset=\"utf-8\">";
        let policy = format!("{charset}\n<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
        let replaced = [
            (charset, policy),
            ("<title>vramscope</title>", format!("<title>{} · vramscope</title>", escaped(name))),
            ("<link rel=\"stylesheet\" href=\"./style.css\">", format!("<style>{}</style>", self.style)),
            ("<script type=\"module\" src=\"./main.js\"></script>\n", String::new()),
            ("\"./icon.svg\"", icon),
            ("</body>", end),
        ];
        replace(self.index, &replaced)
            .map_err(|from| Failure::new(format_args!("the page is another than expected: it has no {from}")))
    }
}

/// `text` with what is found in it replaced, and nothing looked for in what takes its place; what is not found is the error.
fn replace<'f>(text: &str, replaced: &[(&'f str, String)]) -> Result<String, &'f str> {
    let mut found = Vec::new();
    for (from, to) in replaced {
        let before = found.len();
        found.extend(text.match_indices(from).map(|(at, _)| (at, from.len(), to)));
        if found.len() == before {
            return Err(from);
        }
    }
    found.sort_unstable();
    let (mut out, mut rest) = (String::new(), 0);
    for (at, length, to) in found {
        out.push_str(&text[rest..at]);
        out.push_str(to);
        rest = at + length;
    }
    out.push_str(&text[rest..]);
    Ok(out)
}

/// The source expression of a content-security policy for exactly this text.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text.as_bytes())))
}

/// Packed with gzip; the same bytes each time.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("a vector takes all that is written")
}

/// Text for an attribute or an element's content.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\0' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests;
