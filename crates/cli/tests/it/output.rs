//! Tests of standard output and of compressed output files.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use tempfile::TempDir;
use vramscope_trace::ByteSize;

use crate::process::{fixture, run, vramscope};

#[test]
fn import_to_standard_output_equals_the_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let (snapshot, file) = (fixture("tiny_inference.pickle.zst"), folder.path().join("run.vram"));
    let finished = run(["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), file.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let mut command = vramscope(["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), "-".as_ref()]);
    let output = command.current_dir(folder.path()).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == fs::read(&file).expect("the file was written"));
    let stderr = String::from_utf8(output.stderr).expect("the output is text");
    assert!(stderr.starts_with("vramscope: standard output: ") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder exists").count(), 1, "no file named - is left");
}

#[test]
fn output_name_selects_the_compression() {
    let folder = TempDir::new().expect("a temporary folder");
    let snapshot = fixture("tiny_inference.pickle.zst");
    let import = |name: &str| {
        let path = folder.path().join(name);
        let finished = run(["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), path.as_os_str()]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let info = run(["info".as_ref(), path.as_os_str(), "--json".as_ref()]);
        assert_eq!((info.code, info.stderr.as_str()), (Some(0), ""));
        let bytes = fs::read(&path).expect("the file was written");
        let size = format!(", {}\n", ByteSize(bytes.len() as u64));
        assert!(finished.stderr.ends_with(&size), "{} has no {size}", finished.stderr);
        (bytes, info.stdout.replace(name, "run.vram"))
    };
    let (plain, info) = import("run.vram");
    let (gzip, gzip_info) = import("run.vram.gz");
    let (zstd, zstd_info) = import("run.vram.ZST");
    let mut unpacked = Vec::new();
    GzDecoder::new(gzip.as_slice()).read_to_end(&mut unpacked).expect("the file is gzip");
    assert!(unpacked == plain);
    assert!(zstd::decode_all(zstd.as_slice()).expect("the file is zstd") == plain);
    assert!(gzip_info == info && zstd_info == info, "{info}{gzip_info}{zstd_info}");
}

#[test]
fn exported_tables_are_compressed_together() {
    let folder = TempDir::new().expect("a temporary folder");
    let (snapshot, events) = (fixture("tiny_inference.pickle.zst"), folder.path().join("run.csv.gz"));
    let export = |to: &str, output: &Path| {
        let start = ["export".as_ref(), snapshot.as_os_str(), "--to".as_ref(), to.as_ref(), "-o".as_ref()];
        run(start.into_iter().chain([output.as_os_str()]))
    };
    let finished = export("csv", &events);
    assert_eq!(finished.code, Some(0));
    for name in ["run.csv.gz", "run.lifetimes.csv.gz"] {
        let bytes = fs::read(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let size = ByteSize(bytes.len() as u64).to_string();
        let is_reported = |line: &str| line.contains(name) && line.ends_with(&size);
        assert!(finished.stderr.lines().any(is_reported), "{name}, {size}: {}", finished.stderr);
        let mut text = String::new();
        GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("the file is gzip");
        assert!(text.lines().count() > 1, "{name}: {text}");
    }
    let refused = export("csv", Path::new("-"));
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    assert!(refused.stderr.contains("two files"), "{}", refused.stderr);
}
