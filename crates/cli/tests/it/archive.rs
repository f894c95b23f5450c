//! Tests of `view` on an archive in a folder.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;
use vramscope_collector::Process;
use vramscope_fleet::archive::{ArchiveAddress, ArchiveOptions, ArchiveWriter};
use vramscope_trace::{ReadAt, Recording};

use crate::process::{Server, fixture, run};

/// A recording on a server, read by HTTP range requests.
struct ServedFile {
    address: String,
    path: String,
}

impl ReadAt for ServedFile {
    fn read_at(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address)?;
        let Self { address, path } = self;
        let range = format!("Range: bytes={}-{}", range.start, range.end - 1);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{range}\r\nConnection: close\r\n\r\n")?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("the response has a head");
        assert!(response.starts_with(b"HTTP/1.1 206"), "{}", String::from_utf8_lossy(&response[..end]));
        Ok(response[end + 4..].to_vec())
    }
}

/// Archives one recording for both ranks 0 and 1, and returns the archive's address.
fn archive(folder: &Path, recording: &[u8]) -> String {
    let url = format!("file://{}/run", folder.display());
    let address = ArchiveAddress::parse(&url).expect("a valid address");
    let writer = ArchiveWriter::open(&address, "run", ArchiveOptions::default()).expect("the folder can be created");
    for rank in 0..2 {
        let process = Process { identity: format!("{rank:032x}"), rank: Some(rank), ..Process::default() };
        let archive = writer.process(&process).expect("a valid process");
        archive.push(recording).expect("valid chunks");
    }
    writer.finish().expect("everything is stored");
    url
}

#[test]
fn view_shows_every_rank_of_an_archive() {
    let folder = TempDir::new().expect("a temporary folder");
    let bytes = fs::read(fixture("hook_compiled_graphs.vram")).expect("the fixture exists");
    let mut expected = Recording::new();
    expected.push(&bytes).expect("a valid recording");
    let url = archive(folder.path(), &bytes);
    let begin = Instant::now();
    let view = Server::start(["view", &url]);
    let (_, list) = view.get("/files");
    let list: serde_json::Value = serde_json::from_slice(&list).expect("JSON");
    let files = list["files"].as_array().expect("a list");
    assert_eq!(files.len(), 2, "{list}");
    for (rank, file) in files.iter().enumerate() {
        assert!(file["name"].as_str().expect("a name").starts_with(&format!("rank {rank}, ")), "{file}");
        assert_eq!(file["events"], expected.events());
        let path = format!("/{}", file["url"].as_str().expect("an address"));
        let source = Arc::new(ServedFile { address: view.address().to_owned(), path: path.clone() });
        let opened = Recording::open(source, file["bytes"].as_u64().expect("a size"), |_, _| ()).expect("it opens");
        assert!(opened.1.is_none(), "{:?}", opened.1);
        assert_eq!(opened.0.end_state(), expected.end_state());
        let (head, whole) = view.get(&path);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(whole.len() as u64, file["bytes"].as_u64().expect("a size"));
    }
    println!("every rank is opened after {:?}", begin.elapsed());
}

#[test]
fn archives_that_cannot_be_read_are_errors() {
    let folder = TempDir::new().expect("a temporary folder");
    let check = |url: &str, expected: &str| {
        let finished = run(["view", url, "--no-open"]);
        assert_eq!(finished.code, Some(2), "{url}");
        assert!(finished.stderr.contains(expected), "{url}: {}", finished.stderr);
    };
    let empty = format!("file://{}", folder.path().display());
    check(&empty, "is not an archive: it has no manifest.json");
    check("file:///does/not/exist", "is not an archive");
    check("file:///../etc", "the archive's address is invalid");
    check("s3://user:secret@bucket/run", "credentials come from the environment");
    fs::write(folder.path().join("manifest.json"), r#"{"version":9}"#).expect("the folder is writable");
    check(&empty, "manifest.json is invalid");
    let url = archive(&folder.path().join("new"), &fs::read(fixture("hook_graphs.vram")).expect("the fixture exists"));
    let manifest = folder.path().join("new/run/manifest.json");
    let text = fs::read_to_string(&manifest).expect("it was written");
    fs::write(&manifest, text.replace("ranks/0-", "ranks/../0-")).expect("the folder is writable");
    check(&url, "is not that of an object of an archive");
}
