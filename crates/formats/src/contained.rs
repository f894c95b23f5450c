//! Files that contain a recording of another format: HTML pages and ZIP archives.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, ZipArchive, ZipSliceArchive};
use vramscope_trace::{ByteSize, Count};

use crate::error::ReadError;
use crate::html::{find, is_html, recording_in_html};
use crate::limits::Limits;

/// The first bytes of every ZIP archive with files.
const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
/// The file in which `torch.save` stores an object, in a directory of the archive.
const SAVED_OBJECT: &str = "/data.pkl";
/// Ends of the names of files that may be recordings.
const RECORDING_ENDS: [&str; 12] = [
    ".vram",
    ".pickle",
    ".pkl",
    ".json",
    ".csv",
    ".html",
    ".prof",
    ".pb",
    ".pickle.gz",
    ".json.gz",
    ".pickle.zst",
    ".json.zst",
];
/// Maximum number of files of an archive that are looked at.
const MAX_FILES: usize = 10_000;
/// The list of snapshots in a page that PyTorch's `_memory_viz` writes, up to the first one's name.
const PAGE_FILES: &[u8] = b"local_files = [{";
/// The key of a snapshot in such a page.
const PAGE_CONTENT: &[u8] = b"\"base64\": \"";

/// Returns true if a file that begins with `head` is a ZIP archive, whose files are only found once
/// all of it is in memory.
#[must_use]
pub fn is_archive(head: &[u8]) -> bool {
    head.starts_with(ZIP_MAGIC)
}

/// Returns the file that an HTML page or a ZIP archive contains; `None` if `bytes` are neither.
///
/// # Errors
/// If the archive contains no or several recordings, is damaged, or its content is larger than the
/// limits allow.
pub(crate) fn contained_file(bytes: &[u8], limits: &Limits) -> Result<Option<Vec<u8>>, ReadError> {
    if is_archive(bytes) {
        return in_archive(bytes, limits).map(Some);
    }
    if !is_html(bytes) {
        return Ok(None);
    }
    match recording_in_html(bytes, limits)? {
        Some(recording) => Ok(Some(recording)),
        None => snapshot_in_page(bytes, limits),
    }
}

/// Returns the first snapshot in a page that PyTorch's `_memory_viz` wrote; `None` for other pages.
fn snapshot_in_page(bytes: &[u8], limits: &Limits) -> Result<Option<Vec<u8>>, ReadError> {
    let Some(list) = find(bytes, PAGE_FILES) else { return Ok(None) };
    let Some(content) = find(&bytes[list..], PAGE_CONTENT) else { return Ok(None) };
    let start = list + content + PAGE_CONTENT.len();
    let len = bytes[start..].iter().position(|byte| *byte == b'"').ok_or_else(|| ReadError::truncated(bytes.len()))?;
    if base64::decoded_len_estimate(len) as u64 > limits.max_unpacked_bytes {
        return Err(too_large(start, limits));
    }
    let decoded = BASE64.decode(&bytes[start..start + len]);
    decoded
        .map(Some)
        .map_err(|error| ReadError::at(start, "the snapshot in this HTML page is not valid base64").with_source(error))
}

/// Returns the one recording in a ZIP archive.
fn in_archive(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let damaged = |error: rawzip::Error| {
        ReadError::at(0, format!("a ZIP archive that is damaged or cut off: {error}")).with_source(error)
    };
    let archive = ZipArchive::from_slice(bytes).map_err(damaged)?;
    let (mut entries, mut found) = (archive.entries(), Vec::new());
    for _ in 0..MAX_FILES {
        let Some(entry) = entries.next_entry().map_err(damaged)? else { break };
        let name = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
        let lowercase = name.to_ascii_lowercase();
        let is_saved = lowercase.ends_with(SAVED_OBJECT) || lowercase == SAVED_OBJECT[1..];
        if is_saved || RECORDING_ENDS.iter().any(|end| lowercase.ends_with(end)) && !lowercase.contains("__macosx/") {
            found.push((entry.wayfinder(), entry.compression_method(), is_saved));
        }
    }
    // Beside the object, torch.save writes tensors and a few numbers.
    if let Some(saved) = found.iter().position(|(.., is_saved)| *is_saved) {
        found = vec![found.swap_remove(saved)];
    }
    match found.as_slice() {
        [(wayfinder, method, _)] => unpacked(&archive, *wayfinder, *method, limits),
        [] => Err(ReadError::at(0, "a ZIP archive without a recording or snapshot: unpack it to see what it contains")),
        found => {
            let files = Count(found.len() as u64).of("recording", "recordings");
            Err(ReadError::at(0, format!("a ZIP archive with {files}: unpack it, and open one of them")))
        }
    }
}

/// Returns a file of an archive.
fn unpacked(
    archive: &ZipSliceArchive<&[u8]>,
    wayfinder: rawzip::ZipArchiveEntryWayfinder,
    method: CompressionMethod,
    limits: &Limits,
) -> Result<Vec<u8>, ReadError> {
    let damaged = |error: String| ReadError::at(0, format!("a file in this ZIP archive is damaged: {error}"));
    let entry = archive.get_entry(wayfinder).map_err(|error| damaged(error.to_string()))?;
    let limit = limits.max_unpacked_bytes;
    let mut content = Vec::new();
    let read = match method {
        CompressionMethod::STORE => entry.verifying_reader(entry.data()).take(limit + 1).read_to_end(&mut content),
        CompressionMethod::DEFLATE => {
            let decoder = DeflateDecoder::new(entry.data());
            entry.verifying_reader(decoder).take(limit + 1).read_to_end(&mut content)
        }
        _ => return Err(ReadError::at(0, "a ZIP archive with an unusual compression: unpack it first")),
    };
    read.map_err(|error| damaged(error.to_string()))?;
    if content.len() as u64 > limit { Err(too_large(0, limits)) } else { Ok(content) }
}

/// Returns the error for a file inside of another one that is larger than the limit.
fn too_large(offset: usize, limits: &Limits) -> ReadError {
    let limit = ByteSize(limits.max_unpacked_bytes);
    ReadError::at(offset, format!("the file in this one is larger than the limit of {limit}: unpack it first"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rawzip::ZipArchiveWriter;

    use super::*;

    /// Returns an archive with files, whose content is their name.
    fn archive(names: &[&str], method: CompressionMethod) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut archive = ZipArchiveWriter::new(&mut bytes);
        for name in names {
            let started = archive.new_file(name).compression_method(method).start();
            let (mut entry, config) = started.expect("the name is valid");
            let descriptor = if method == CompressionMethod::DEFLATE {
                let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::fast());
                let mut writer = config.wrap(encoder);
                writer.write_all(name.as_bytes()).expect("memory can be written");
                let (encoder, descriptor) = writer.finish().expect("memory can be written");
                encoder.finish().expect("memory can be written");
                descriptor
            } else {
                let mut writer = config.wrap(&mut entry);
                writer.write_all(name.as_bytes()).expect("memory can be written");
                writer.finish().expect("memory can be written").1
            };
            entry.finish(descriptor).expect("memory can be written");
        }
        archive.finish().expect("memory can be written");
        bytes
    }

    #[test]
    fn one_recording_of_an_archive_is_extracted() {
        let limits = Limits::default();
        for method in [CompressionMethod::STORE, CompressionMethod::DEFLATE] {
            let file = |names: &[&str]| contained_file(&archive(names, method), &limits);
            let content = |names: &[&str]| file(names).expect("it is valid").expect("it is an archive");
            assert_eq!(content(&["readme.txt", "a/run.pickle"]), b"a/run.pickle");
            assert_eq!(content(&["x/data.pkl", "x/data/0", "x/version", "x/more.json"]), b"x/data.pkl");
            assert!(file(&["a.json", "b.vram"]).is_err_and(|error| error.message.contains("2 recordings")));
            assert!(file(&["a.txt"]).is_err_and(|error| error.message.contains("without a recording")));
            let small = Limits { max_unpacked_bytes: 5, ..limits };
            assert!(contained_file(&archive(&["a/run.pickle"], method), &small).is_err());
        }
    }

    #[test]
    fn damaged_archives_are_errors() {
        let whole = archive(&["a/run.pickle"], CompressionMethod::DEFLATE);
        for len in 4..whole.len() {
            assert!(contained_file(&whole[..len], &Limits::default()).is_err(), "{len} bytes");
        }
        for at in 4..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x5a;
            // Any result but a panic.
            let _ = contained_file(&bytes, &Limits::default());
        }
    }

    #[test]
    fn snapshot_of_a_page_is_extracted() {
        let page = |content: &str| {
            format!(
                "\n<!DOCTYPE html>\n<script type=\"module\">\nconst local_files = [{{\"name\": \"snapshot.pickle\", \
                 \"base64\": \"{content}\"}}]\n</script>"
            )
        };
        let contained = |page: &str| contained_file(page.as_bytes(), &Limits::default());
        assert_eq!(contained(&page("aGVsbG8=")).expect("it is valid").as_deref(), Some(&b"hello"[..]));
        assert!(contained(&page("aGVsbG8")).is_err());
        assert!(contained("<!DOCTYPE html><p>local_files = [{").expect("it is no page of PyTorch").is_none());
    }
}
