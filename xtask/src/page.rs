//! Compresses the page's files with brotli and gzip into `www/dist`, which the page crate embeds.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use flate2::{Compression, Crc};

/// The files that opening the page transfers, relative to `www`.
const FILES: [&str; 9] = [
    "icon.svg",
    "index.html",
    "main.js",
    "manifest.webmanifest",
    "pkg/vramscope_viewer.js",
    "pkg/vramscope_viewer_bg.wasm",
    "start.js",
    "style.css",
    "worker.js",
];
/// The files that the page loads later, when it needs them.
const LATER_FILES: [&str; 7] = [
    "examples/mlp_train.vram",
    "examples/oom_frag.vram",
    "examples/resnet50_train.vram",
    "importer.js",
    "pkg/vramscope_importer.js",
    "pkg/vramscope_importer_bg.wasm",
    SERVICE_WORKER,
];
/// The script that keeps the page's files for use without the server.
const SERVICE_WORKER: &str = "sw.js";
/// The text in [`SERVICE_WORKER`] that the version of the page replaces.
const VERSION_PLACEHOLDER: &str = "\"development\"";

/// How hard brotli tries (`Fast` or `Smallest`). On the viewer's 2 MB of wasm: 0.2 s for 587 KB, or
/// 4 s for 518 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    Fast,
    Smallest,
}

impl Effort {
    /// Returns brotli's quality level, up to 11.
    fn quality(self) -> u32 {
        match self {
            Self::Fast => 9,
            Self::Smallest => 11,
        }
    }
}

/// Most bytes that opening the page may transfer with brotli, fonts included. Over plain HTTP from
/// another machine browsers accept only gzip, which is a third larger.
const MAX_WIRE_BYTES: u64 = 700_000;

/// Compresses every file of the page. A file that was compressed already is left untouched, so that
/// an unchanged page causes no rebuild. A page over [`MAX_WIRE_BYTES`] is an error.
pub(crate) fn compress(www: &Path, effort: Effort) -> io::Result<()> {
    let dist = www.join("dist");
    // Files that are no longer part of the page would stay embedded.
    let stamp = dist.join("effort.txt");
    let quality = effort.quality().to_string();
    if fs::read_to_string(&stamp).is_ok_and(|before| before != quality) || !stamp.exists() {
        remove_if_present(&dist)?;
    }
    let version = version(www)?;
    let version_stamp = dist.join("version.txt");
    let is_other_version = !fs::read_to_string(&version_stamp).is_ok_and(|before| before == version);
    let (mut brotli_bytes, mut gzip_bytes) = (0, 0);
    for name in FILES.into_iter().chain(LATER_FILES) {
        let source = www.join(name);
        let target = dist.join(name);
        let brotli = with_suffix(&target, "br");
        let gzip = with_suffix(&target, "gz");
        let has_changed = name == SERVICE_WORKER && is_other_version;
        if has_changed || !is_newer(&brotli, &source) || !is_newer(&gzip, &source) {
            let mut bytes = fs::read(&source)?;
            if name == SERVICE_WORKER {
                bytes = with_version(&bytes, &version)?;
            }
            if name.ends_with(".js") || name.ends_with(".css") {
                bytes = without_comments(&bytes);
            }
            fs::create_dir_all(target.parent().unwrap_or(&dist))?;
            fs::write(&gzip, compress_gzip(&bytes)?)?;
            fs::write(&brotli, compress_brotli(&bytes, effort)?)?;
        }
        if FILES.contains(&name) {
            brotli_bytes += fs::metadata(&brotli)?.len();
            gzip_bytes += fs::metadata(&gzip)?.len();
        }
    }
    fs::write(&stamp, quality)?;
    fs::write(&version_stamp, version)?;
    eprintln!("page: {brotli_bytes} bytes with brotli, {gzip_bytes} with gzip");
    // A development build of the viewer is several times as large.
    if effort == Effort::Smallest && brotli_bytes > MAX_WIRE_BYTES {
        return Err(io::Error::other(format!("the page has {brotli_bytes} bytes, more than {MAX_WIRE_BYTES}")));
    }
    Ok(())
}

/// Returns the version of the page: a checksum of all its files.
fn version(www: &Path) -> io::Result<String> {
    let mut checksum = Crc::new();
    for name in FILES.into_iter().chain(LATER_FILES) {
        checksum.update(&fs::read(www.join(name))?);
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
/// line. Comments after code stay: their marks may stand in a text.
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

/// Compresses bytes with gzip.
fn compress_gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Compresses bytes with brotli.
fn compress_brotli(bytes: &[u8], effort: Effort) -> io::Result<Vec<u8>> {
    let mut compressed = Vec::new();
    {
        let mut writer = brotli::CompressorWriter::new(&mut compressed, 1 << 16, effort.quality(), 24);
        writer.write_all(bytes)?;
        writer.flush()?;
    }
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
        let www = tempfile::tempdir().expect("a temporary folder");
        for folder in ["pkg", "examples"] {
            fs::create_dir_all(www.path().join(folder)).expect("a folder");
        }
        for name in FILES.into_iter().chain(LATER_FILES) {
            let text = format!("{name} {VERSION_PLACEHOLDER} ");
            fs::write(www.path().join(name), text.repeat(1000)).expect("a file");
        }
        compress(www.path(), Effort::Fast).expect("compressed");
        let target = www.path().join("dist/index.html.br");
        let first = fs::metadata(&target).and_then(|file| file.modified()).expect("a modification time");
        compress(www.path(), Effort::Fast).expect("compressed");
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
