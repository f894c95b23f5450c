//! Compresses the page's files with brotli into `www/dist`, which the page crate embeds, and copies
//! the gallery's recordings there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use flate2::Crc;
use serde_json::Value;

use crate::shell;

/// The files that opening the page transfers, relative to `www`.
const FILES: [&str; 11] = [
    "dom.js",
    "icon.svg",
    "index.html",
    "main.js",
    "manifest.webmanifest",
    "panels.css",
    "pkg/vramscope_viewer.js",
    "pkg/vramscope_viewer_bg.wasm",
    "start.js",
    "style.css",
    "worker.js",
];
/// The files that the page loads later, when it needs them, except the gallery's recordings.
const LATER_FILES: [&str; 11] = [
    "analyzer.js",
    GALLERY,
    "gallery.css",
    "gallery.js",
    "importer.js",
    "pkg/vramscope_analyzer.js",
    "pkg/vramscope_analyzer_bg.wasm",
    "pkg/vramscope_importer.js",
    "pkg/vramscope_importer_bg.wasm",
    "pkg/vramscope_viewer_later_bg.wasm",
    SERVICE_WORKER,
];
/// The files of the fleet page, which a server with a fleet serves at `fleet/`. It also
/// transfers [`SHARED_WITH_FLEET`].
const FLEET_FILES: [&str; 5] = [
    "fleet/index.html",
    "fleet/main.js",
    "fleet/style.css",
    "pkg/vramscope_fleet_page.js",
    "pkg/vramscope_fleet_page_bg.wasm",
];
/// The files of the main page that the fleet page loads, too.
const SHARED_WITH_FLEET: [&str; 2] = ["icon.svg", "style.css"];
/// The gallery's data, which names its recordings. They are below [`GALLERY_FOLDER`] on the page.
const GALLERY: &str = "examples/gallery.json";
/// The folder of the gallery on the page.
const GALLERY_FOLDER: &str = "examples";
/// The folders with the gallery's recordings, relative to `www`: the page has copies.
const RECORDING_FOLDERS: [&str; 2] = ["../examples/pytorch/recordings", "../tests/data/tour"];
/// Most bytes of a recording in the gallery.
const MAX_RECORDING_BYTES: u64 = 100_000;
/// The script (a service worker) that stores the page's files for use without the server.
const SERVICE_WORKER: &str = "sw.js";
/// The text in [`SERVICE_WORKER`] that the version of the page replaces.
const VERSION_PLACEHOLDER: &str = "\"development\"";

/// Brotli's effort. On 13 MB of unoptimized wasm, `Fast` takes 0.1 s and compresses the viewer's
/// 6.2 MB to 1.7 MB; level 5 would take 1.1 s and compress them to 1.4 MB. `Smallest` takes 4 s for
/// the viewer's 2 MB in a release and compresses them to 518 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    Fast,
    Smallest,
}

impl Effort {
    /// Returns brotli's quality level, up to 11.
    fn quality(self) -> i32 {
        match self {
            Self::Fast => 2,
            Self::Smallest => 11,
        }
    }
}

/// Most bytes that opening the page may transfer with brotli, fonts included. Over plain HTTP from
/// another machine browsers accept only gzip, which is half as large again.
const MAX_WIRE_BYTES: u64 = 700_000;
/// Most bytes that opening the fleet page may transfer with brotli.
const MAX_FLEET_WIRE_BYTES: u64 = 150_000;

/// Compresses every file of the page. A file that was compressed already is left untouched, so that
/// an unchanged page causes no rebuild. It is an error if the page is over [`MAX_WIRE_BYTES`], or
/// the fleet page over [`MAX_FLEET_WIRE_BYTES`].
pub(crate) fn compress(www: &Path, effort: Effort) -> io::Result<()> {
    let dist = www.join("dist");
    // Files that are no longer part of the page would stay embedded.
    let stamp = dist.join("effort.txt");
    let quality = format!("brotli {}, fonts", effort.quality());
    if fs::read_to_string(&stamp).is_ok_and(|before| before != quality) || !stamp.exists() {
        remove_if_present(&dist)?;
    }
    let version = version(www)?;
    let version_stamp = dist.join("version.txt");
    let is_other_version = !fs::read_to_string(&version_stamp).is_ok_and(|before| before == version);
    copy_recordings(www, &dist)?;
    let (mut page_bytes, mut fleet_bytes) = (0, 0);
    for name in all_files() {
        let source = www.join(name);
        let target = dist.join(name);
        let brotli = with_suffix(&target, "br");
        let has_changed = name == SERVICE_WORKER && is_other_version;
        if has_changed || !is_newer(&brotli, &source) {
            let mut bytes = fs::read(&source)?;
            if name == SERVICE_WORKER {
                bytes = with_version(&bytes, &version)?;
            }
            if name.ends_with(".js") || name.ends_with(".css") {
                bytes = without_comments(&bytes);
            }
            fs::create_dir_all(target.parent().unwrap_or(&dist))?;
            fs::write(&brotli, compress_brotli(&bytes, effort)?)?;
        }
        if FILES.contains(&name) {
            page_bytes += fs::metadata(&brotli)?.len();
        }
        if FLEET_FILES.contains(&name) || SHARED_WITH_FLEET.contains(&name) {
            fleet_bytes += fs::metadata(&brotli)?.len();
        }
    }
    fs::write(&stamp, quality)?;
    fs::write(&version_stamp, version)?;
    shell::print(&format!("page: {page_bytes} bytes, fleet page: {fleet_bytes} bytes"));
    // A development build of the viewer is several times as large.
    let is_measured = effort == Effort::Smallest;
    for (name, bytes, most) in
        [("the page", page_bytes, MAX_WIRE_BYTES), ("the fleet page", fleet_bytes, MAX_FLEET_WIRE_BYTES)]
    {
        if is_measured && bytes > most {
            return Err(io::Error::other(format!("{name} has {bytes} bytes, more than {most}")));
        }
    }
    Ok(())
}

/// Iterates over the names of all files that are compressed.
fn all_files() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().chain(LATER_FILES).chain(FLEET_FILES)
}

/// Copies the gallery's recordings into `dist`, and removes recordings that the gallery no longer
/// has. The copies are not compressed, because the format of recordings is.
fn copy_recordings(www: &Path, dist: &Path) -> io::Result<()> {
    let folder = dist.join(GALLERY_FOLDER);
    fs::create_dir_all(&folder)?;
    let recordings = recordings(www)?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let is_data = path.with_extension("") == dist.join(GALLERY);
        if !is_data && !recordings.iter().any(|recording| recording.file_name() == path.file_name()) {
            fs::remove_file(path)?;
        }
    }
    for source in recordings {
        let bytes = fs::metadata(&source)?.len();
        if bytes > MAX_RECORDING_BYTES {
            let text = format!("{} has {bytes} bytes, more than {MAX_RECORDING_BYTES}", source.display());
            return Err(io::Error::other(text));
        }
        let target = folder.join(source.file_name().unwrap_or_default());
        if !is_newer(&target, &source) {
            // Unlike `fs::copy`, `fs::write` makes the copy newer than its source on every system.
            fs::write(target, fs::read(&source)?)?;
        }
    }
    Ok(())
}

/// Returns the paths of the gallery's recordings, without duplicates.
fn recordings(www: &Path) -> io::Result<Vec<PathBuf>> {
    let gallery: Value = serde_json::from_slice(&fs::read(www.join(GALLERY))?)?;
    let entries = gallery["recordings"].as_array().into_iter().flatten();
    let names = entries.flat_map(|entry| entry["files"].as_array().into_iter().flatten()).filter_map(Value::as_str);
    let find = |name: &str| {
        let paths = RECORDING_FOLDERS.map(|folder| www.join(folder).join(format!("{name}.vram")));
        let missing = || io::Error::other(format!("{GALLERY}: no recording {name} in {RECORDING_FOLDERS:?}"));
        paths.into_iter().find(|path| path.is_file()).ok_or_else(missing)
    };
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(find).collect()
}

/// Returns the version of the page: a checksum of all its files.
fn version(www: &Path) -> io::Result<String> {
    let mut checksum = Crc::new();
    let files = FILES.into_iter().chain(LATER_FILES).map(|name| www.join(name));
    for path in files.chain(recordings(www)?) {
        checksum.update(&fs::read(path)?);
    }
    Ok(format!("{:08x}", checksum.sum()))
}

/// Returns the service worker's script with the version of the page in it.
fn with_version(script: &[u8], version: &str) -> io::Result<Vec<u8>> {
    let script = String::from_utf8_lossy(script);
    if !script.contains(VERSION_PLACEHOLDER) {
        return Err(io::Error::other(format!(
            "{SERVICE_WORKER} lacks {VERSION_PLACEHOLDER}, the place of the version"
        )));
    }
    Ok(script.replace(VERSION_PLACEHOLDER, &format!("{version:?}")).into_bytes())
}

/// Returns a script or style sheet without indentation, empty lines, and comments that begin a
/// line. Comments after code are kept, because comment marks may also occur in string literals.
fn without_comments(source: &[u8]) -> Vec<u8> {
    let mut output = String::new();
    let mut is_in_comment = false;
    for line in String::from_utf8_lossy(source).lines() {
        let mut line = line.trim();
        is_in_comment |= line.starts_with("/*");
        if is_in_comment {
            let Some((_, rest)) = line.split_once("*/") else { continue };
            (line, is_in_comment) = (rest.trim(), false);
        }
        if !line.is_empty() && !line.starts_with("//") {
            output.push_str(line);
            output.push('\n');
        }
    }
    output.into_bytes()
}

/// Removes a folder with its content; does nothing if it is missing.
fn remove_if_present(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Returns the path with a dot and `suffix` appended: `main.js.br`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    path.into()
}

/// Returns true if `target` exists and was written after `source` was last changed.
fn is_newer(target: &Path, source: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    modified(target).is_some_and(|target| modified(source).is_some_and(|source| target >= source))
}

/// Compresses bytes with brotli.
fn compress_brotli(bytes: &[u8], effort: Effort) -> io::Result<Vec<u8>> {
    let mut compressed = Vec::new();
    let parameters = BrotliEncoderParams {
        // The mode for fonts differs in how it writes distances only, and compresses the viewer's
        // WebAssembly to 1.1 KB less than the generic one.
        mode: BrotliEncoderMode::BROTLI_MODE_FONT,
        quality: effort.quality(),
        lgwin: 24,
        size_hint: bytes.len(),
        ..BrotliEncoderParams::default()
    };
    brotli::BrotliCompress(&mut &*bytes, &mut compressed, &parameters)?;
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_indentation_are_removed() {
        let source = "/**\n * Text.\n */ a();\n\n  // Text.\n  b(\"//x\"); // c\n/* d */\n";
        assert_eq!(without_comments(source.as_bytes()), b"a();\nb(\"//x\"); // c\n");
    }

    #[test]
    fn unchanged_files_are_not_compressed_again() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let www = root.path().join("www");
        let recordings = www.join(RECORDING_FOLDERS[1]);
        for folder in
            [www.join("pkg"), www.join("fleet"), www.join(GALLERY_FOLDER), root.path().join("tests/data/tour")]
        {
            fs::create_dir_all(folder).expect("a folder");
        }
        for name in all_files() {
            let text = format!("{name} {VERSION_PLACEHOLDER} ");
            fs::write(www.join(name), text.repeat(1000)).expect("a file");
        }
        let set_gallery = |file: &str| {
            let text = format!("{{\"recordings\": [{{\"files\": [{file:?}]}}]}}");
            fs::write(www.join(GALLERY), text).expect("a file");
        };
        set_gallery("a");
        let missing = compress(&www, Effort::Fast).expect_err("no such recording");
        assert!(missing.to_string().contains("no recording a"), "{missing}");
        for name in ["a.vram", "b.vram"] {
            fs::write(recordings.join(name), name).expect("a file");
        }
        compress(&www, Effort::Fast).expect("compressed");
        assert_eq!(fs::read(www.join("dist/examples/a.vram")).expect("a copy"), b"a.vram");
        let target = www.join("dist/index.html.br");
        let first = fs::metadata(&target).and_then(|file| file.modified()).expect("a modification time");
        set_gallery("b");
        compress(&www, Effort::Fast).expect("compressed");
        assert!(!www.join("dist/examples/a.vram").exists() && www.join("dist/examples/b.vram").exists());
        assert!(www.join("dist/examples/gallery.json.br").exists());
        let second = fs::metadata(&target).and_then(|file| file.modified()).expect("a modification time");
        assert_eq!(first, second);
        assert!(fs::metadata(&target).expect("a file").len() < 200);
    }

    #[test]
    fn service_worker_keeps_every_file_of_the_page() {
        let www = Path::new(env!("CARGO_MANIFEST_DIR")).join("../www");
        let script = fs::read_to_string(www.join(SERVICE_WORKER)).expect("a script");
        for name in FILES.into_iter().chain(LATER_FILES).filter(|name| *name != SERVICE_WORKER) {
            assert!(script.contains(&format!("\"{name}\"")), "{SERVICE_WORKER} lacks {name}");
        }
        let versioned = with_version(script.as_bytes(), "0123abcd").expect("a place for the version");
        let versioned = String::from_utf8(versioned).expect("text");
        assert!(versioned.contains("const VERSION = \"0123abcd\";") && !versioned.contains(VERSION_PLACEHOLDER));
    }
}
