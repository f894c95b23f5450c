//! Tests of `demo`, `record` and `view`.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vramscope_trace::{Annotation, ByteSize, DecodedItem, Decoder, Definitions, Recording, RecordingOpener, digest};

use crate::process::{Server, fixture, interrupt, vramscope, wait, wait_until};

/// Reads a recording from its bytes.
fn recording(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a valid recording");
    recording.finish().expect("the recording is complete");
    recording
}

/// Returns the contents of a recording, regardless of how they are divided into chunks.
fn contents(bytes: &[u8]) -> (Vec<DecodedItem>, Definitions, Vec<Annotation>) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    let events = items.filter(|item| matches!(item, DecodedItem::Event(_) | DecodedItem::Info(_))).collect();
    let recording = recording(bytes);
    (events, recording.definitions().clone(), recording.annotations().to_vec())
}

/// Starts `record` on a server with further arguments `more`.
fn record(server: &Server, out: &Path, more: &[&str]) -> Child {
    let mut command = vramscope(["record".as_ref(), server.url.as_ref(), "-o".as_ref(), out.as_os_str()]);
    command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

#[test]
fn file_socket_and_download_have_the_same_contents() {
    let folder = TempDir::new().expect("a temporary folder");
    let (file, copy) = (folder.path().join("demo.vram"), folder.path().join("copy.vram"));
    let mut demo =
        Server::start(["demo".as_ref(), "--steps".as_ref(), "40".as_ref(), "--record".as_ref(), file.as_os_str()]);
    let mut recorder = record(&demo, &copy, &[]);
    // The demo continues to serve after the training, but followers receive the end.
    assert!(wait(&mut recorder).success());
    let (head, download) = demo.get("/trace.vram");
    assert!(head.contains("application/vnd.vramscope.trace"), "{head}");
    let written = fs::read(&file).expect("the demo has written its file");
    // The chunks differ, because viewers receive small ones.
    let copied = fs::read(&copy).expect("record has written its file");
    assert!(contents(&written) == contents(&copied), "the file and the socket");
    assert!(contents(&written) == contents(&download), "the file and the download");
    let recording = recording(&written);
    assert!(recording.end_event() > 1000, "{} events", recording.end_event());
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    let (status, stderr) = demo.interrupt();
    assert!(status.success(), "{status}: {stderr}");
}

#[test]
fn record_stops_after_its_duration_and_on_ctrl_c() {
    let folder = TempDir::new().expect("a temporary folder");
    let (timed, stopped) = (folder.path().join("timed.vram"), folder.path().join("stopped.vram"));
    let mut demo = Server::start(["demo"]);
    let start = Instant::now();
    let mut with_time = record(&demo, &timed, &["--for", "1s"]);
    let mut without = record(&demo, &stopped, &[]);
    assert!(wait(&mut with_time).success());
    assert!(start.elapsed() >= Duration::from_secs(1));
    wait_until("the second record has written data", || fs::metadata(&stopped).is_ok_and(|file| file.len() > 1000));
    interrupt(&without);
    assert!(wait(&mut without).success());
    // The demo is not affected.
    assert!(demo.get("/healthz").0.contains(" 200 "));
    for path in [&timed, &stopped] {
        let recording = recording(&fs::read(path).expect("the file was written"));
        assert!(recording.end_event() > 0);
        assert_eq!(recording.lost_events(), 0);
    }
    assert!(demo.interrupt().0.success());
}

#[test]
fn interrupted_demo_leaves_a_complete_recording() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("demo.vram");
    let mut demo = Server::start(["demo".as_ref(), "--record".as_ref(), file.as_os_str()]);
    wait_until("the file grows while the demo runs", || fs::metadata(&file).is_ok_and(|file| file.len() > 5_000));
    let (status, stderr) = demo.interrupt();
    assert!(status.success(), "{status}: {stderr}");
    let recording = recording(&fs::read(&file).expect("the file was written"));
    assert!(recording.end_event() > 0);
}

#[test]
fn write_error_fails_the_demo_but_not_the_live_view() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("SKIPPED: no /dev/full on this system");
        return;
    }
    let mut demo = Server::start(["demo", "--record", "/dev/full"]);
    let (status, stderr) = demo.interrupt();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("/dev/full: the recording is incomplete"), "{stderr}");
    assert!(stderr.contains("the file ends here, the live view continues"), "{stderr}");
}

#[test]
fn view_serves_its_files() {
    let snapshot = |name: &str| fixture(&format!("{name}.pickle.zst"));
    let files = [snapshot("tiny_inference"), snapshot("ring")];
    let mut view = Server::start(["view".as_ref(), files[0].as_os_str(), files[1].as_os_str()]);
    // The page lists several recordings; a single one is opened at once.
    assert!(view.get("/").0.contains(" 200 "));
    let list = String::from_utf8(view.get("/files").1).expect("JSON is UTF-8");
    for url in ["\"url\":\"files/0/tiny_inference.vram\"", "\"url\":\"files/1/ring.vram\""] {
        assert!(list.contains(url), "{list}");
    }
    let mut single = Server::start(["view".as_ref(), files[0].as_os_str()]);
    assert!(single.get("/").0.contains("?trace=files/0/tiny_inference.vram"));
    assert!(single.interrupt().0.success());
    let (head, page) = view.get("/?trace=files/0/tiny_inference.vram");
    assert!(head.contains(" 200 ") && head.contains("content-security-policy"), "{head}");
    assert!(String::from_utf8_lossy(&page).to_lowercase().starts_with("<!doctype html>"));
    let (head, first) = view.get("/files/0/tiny_inference.vram");
    assert!(head.contains("application/vnd.vramscope.trace"), "{head}");
    let (_, second) = view.get("/files/1/ring.vram");
    assert_ne!(digest(recording(&first).end_state()), digest(recording(&second).end_state()));
    assert!(view.get("/ws").0.contains(" 404 "));
    assert!(view.interrupt().0.success());
}

#[test]
fn every_served_recording_has_an_index() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let (snapshot, whole) = (fixture("frag_a_expandable.pickle.zst"), path("whole.vram"));
    let import = ["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), whole.as_os_str()];
    assert!(vramscope(import).output().expect("the binary starts").status.success());
    let bytes = fs::read(&whole).expect("import has written its file");
    let end = recording(&bytes).end_event();
    // Two files as of killed programs: both lack an index, and the second ends within a chunk.
    fs::write(path("ended.vram"), &bytes[..bytes.len() - 7]).expect("the file is writable");
    fs::write(path("killed.vram"), &bytes[..bytes.len() / 3]).expect("the file is writable");
    let files = [whole.clone(), path("ended.vram"), path("killed.vram"), snapshot];
    let mut view = Server::start(std::iter::once("view".as_ref()).chain(files.iter().map(|file| file.as_os_str())));
    let served = |name: &str| {
        let (head, served) = view.get(name);
        assert!(head.contains("accept-ranges: bytes"), "{head}");
        let mut opening = RecordingOpener::new(served.len() as u64);
        while let Some(range) = opening.wanted_range() {
            opening.supply(range.start, &served[range.start as usize..range.end as usize]);
        }
        (opening.finish().unwrap_or_else(|| panic!("{name} has no index")).end_event(), served)
    };
    assert!(served("/files/0/whole.vram") == (end, bytes), "a file with an index is served unchanged");
    assert_eq!(served("/files/1/ended.vram").0, end);
    assert!(served("/files/2/killed.vram").0 < end);
    assert_eq!(served("/files/3/frag_a_expandable.vram").0, end);
    let (status, stderr) = view.interrupt();
    assert!(status.success() && stderr.contains("killed.vram") && !stderr.contains("whole.vram"), "{stderr}");
}

#[test]
fn record_writes_to_a_pipe() {
    let mut demo = Server::start(["demo"]);
    let mut recorder = record(&demo, Path::new("-"), &["--for=0.5s"]);
    let mut bytes = Vec::new();
    recorder.stdout.take().expect("stdout is piped").read_to_end(&mut bytes).expect("stdout can be read");
    assert!(wait(&mut recorder).success());
    assert!(recording(&bytes).end_event() > 0);
    let mut stderr = String::new();
    recorder.stderr.take().expect("stderr is piped").read_to_string(&mut stderr).expect("stderr is text");
    let size = ByteSize(bytes.len() as u64);
    assert!(stderr.starts_with("vramscope: standard output: "), "{stderr}");
    assert!(stderr.contains(&format!(", {size} in ")), "stdout has {size}: {stderr}");
    assert!(demo.interrupt().0.success());
}

#[test]
fn record_reports_the_size_of_the_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("copy.vram");
    let mut demo = Server::start(["demo"]);
    let recorder = record(&demo, &file, &["--for=0.5s"]).wait_with_output().expect("record ends by itself");
    let stderr = String::from_utf8(recorder.stderr).expect("the output is text");
    assert_eq!(recorder.status.code(), Some(0), "{stderr}");
    let size = ByteSize(fs::metadata(&file).expect("the file was written").len());
    assert!(stderr.contains(&format!(", {size} in ")), "the file has {size}: {stderr}");
    assert!(demo.interrupt().0.success());
}

#[test]
fn keep_limits_the_recording_to_its_newest_part() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("newest.vram");
    let mut demo = Server::start(["demo"]);
    let mut recorder = record(&demo, &file, &["--for=6s", "--keep=1s", "--keep-bytes=1G"]);
    assert!(wait(&mut recorder).success());
    let recording = recording(&fs::read(&file).expect("the file was written"));
    let kept_ns = recording.end_ns() - recording.start_ns();
    assert!(recording.first_event() > 0);
    assert!((800_000_000..3_000_000_000).contains(&kept_ns), "{kept_ns} ns");
    assert_eq!(recording.lost_events(), 0);
    assert!(demo.interrupt().0.success());
}

#[cfg(target_os = "linux")]
#[test]
fn file_at_the_size_limit_is_complete() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("copy.vram");
    let mut demo = Server::start(["demo"]);
    // 60 blocks are 30 or 60 KiB, depending on the shell.
    wait_until("the recording exceeds the limit", || demo.get("/trace.vram").1.len() > 70_000);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 60 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_vramscope")]);
    let done = limited.args(["record", &demo.url, "-o"]).arg(&file).output().expect("the shell runs");
    let stderr = String::from_utf8(done.stderr).expect("the output is text");
    assert_eq!(done.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("copy.vram: File too large"), "{stderr}");
    // The file ends after the last chunk that fits.
    recording(&fs::read(&file).expect("the file was written"));
    assert!(demo.interrupt().0.success());
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_ends_record_but_not_the_program() {
    let mut demo = Server::start(["demo"]);
    let recorder = record(&demo, Path::new("/dev/full"), &[]).wait_with_output().expect("record ends by itself");
    let stderr = String::from_utf8(recorder.stderr).expect("the output is text");
    assert_eq!(recorder.status.code(), Some(2));
    assert!(stderr.contains("/dev/full: No space left on device"), "{stderr}");
    assert!(demo.get("/healthz").0.contains(" 200 "));
    assert!(demo.interrupt().0.success());
}
