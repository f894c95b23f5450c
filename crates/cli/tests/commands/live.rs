//! `demo`, `record` and `view`.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vramscope_trace::{Annotation, Decoder, Definitions, Item, Opening, Recording, digest};

use crate::program::{Server, fixture, interrupt, vramscope, wait, wait_until};

fn recording(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a recording");
    recording.finish().expect("a whole one");
    recording
}

/// What a recording says, however it is cut into chunks.
fn said(bytes: &[u8]) -> (Vec<Item>, Definitions, Vec<Annotation>) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    let events = items.filter(|item| matches!(item, Item::Event(_) | Item::Info(_))).collect();
    let recording = recording(bytes);
    (events, recording.definitions().clone(), recording.annotations().to_vec())
}

fn record(server: &Server, out: &Path, more: &[&str]) -> Child {
    let mut command = vramscope(["record".as_ref(), server.url.as_ref(), "-o".as_ref(), out.as_os_str()]);
    command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

#[test]
fn the_file_the_socket_and_the_download_are_the_same_recording() {
    let folder = TempDir::new().expect("a folder");
    let (file, copy) = (folder.path().join("demo.vram"), folder.path().join("copy.vram"));
    let mut demo =
        Server::start(["demo".as_ref(), "--steps".as_ref(), "40".as_ref(), "--record".as_ref(), file.as_os_str()]);
    let mut recorder = record(&demo, &copy, &[]);
    // The demo goes on serving when it is done, and whoever follows it is told that this was all.
    assert!(wait(&mut recorder).success());
    let (head, download) = demo.get("/trace.vram");
    assert!(head.contains("application/vnd.vramscope.trace"), "{head}");
    let written = fs::read(&file).expect("the demo has recorded");
    // In other chunks, for viewers get small ones.
    let copied = fs::read(&copy).expect("record has written");
    assert!(said(&written) == said(&copied), "the file and the socket");
    assert!(said(&written) == said(&download), "the file and the download");
    let recording = recording(&written);
    assert!(recording.end_event() > 1000, "{} events", recording.end_event());
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    let (status, said) = demo.interrupt();
    assert!(status.success(), "{status}: {said}");
}

#[test]
fn record_stops_after_its_time_and_when_interrupted() {
    let folder = TempDir::new().expect("a folder");
    let (timed, stopped) = (folder.path().join("timed.vram"), folder.path().join("stopped.vram"));
    let mut demo = Server::start(["demo"]);
    let began = Instant::now();
    let mut with_time = record(&demo, &timed, &["--for", "1s"]);
    let mut without = record(&demo, &stopped, &[]);
    assert!(wait(&mut with_time).success());
    assert!(began.elapsed() >= Duration::from_secs(1));
    wait_until("the other has written something", || fs::metadata(&stopped).is_ok_and(|file| file.len() > 1000));
    interrupt(&without);
    assert!(wait(&mut without).success());
    // The demo did not notice.
    assert!(demo.get("/healthz").0.contains(" 200 "));
    for path in [&timed, &stopped] {
        let recording = recording(&fs::read(path).expect("written"));
        assert!(recording.end_event() > 0);
        assert_eq!(recording.lost_events(), 0);
    }
    assert!(demo.interrupt().0.success());
}

#[test]
fn an_interrupted_demo_leaves_a_whole_recording() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("demo.vram");
    let mut demo = Server::start(["demo".as_ref(), "--record".as_ref(), file.as_os_str()]);
    wait_until("the file grows while the demo runs", || fs::metadata(&file).is_ok_and(|file| file.len() > 5_000));
    let began = Instant::now();
    let (status, said) = demo.interrupt();
    assert!(status.success(), "{status}: {said}");
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?} to stop", began.elapsed());
    let recording = recording(&fs::read(&file).expect("recorded"));
    assert!(recording.end_event() > 0);
}

#[test]
fn a_recording_that_cannot_be_written_fails_the_demo() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("SKIPPED: this system has no /dev/full");
        return;
    }
    let mut demo = Server::start(["demo", "--record", "/dev/full"]);
    let (status, said) = demo.interrupt();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("/dev/full: not all was written"), "{said}");
    assert!(said.contains("the file ends here, the live view goes on"), "{said}");
}

#[test]
fn view_serves_what_it_was_given() {
    let snapshot = |name: &str| fixture(&format!("{name}.pickle.zst"));
    let files = [snapshot("tiny_inference"), snapshot("ring")];
    let mut view = Server::start(["view".as_ref(), files[0].as_os_str(), files[1].as_os_str()]);
    let (head, _) = view.get("/");
    assert!(head.contains("?trace=files/0/tiny_inference.vram"), "{head}");
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
fn whatever_view_serves_opens_by_an_index() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (snapshot, whole) = (fixture("frag_a_expandable.pickle.zst"), path("whole.vram"));
    let import = ["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), whole.as_os_str()];
    assert!(vramscope(import).output().expect("the binary starts").status.success());
    let bytes = fs::read(&whole).expect("import has written");
    let end = recording(&bytes).end_event();
    // As a program that was killed leaves it: without an index, and the second one in the middle of a chunk.
    fs::write(path("ended.vram"), &bytes[..bytes.len() - 7]).expect("room");
    fs::write(path("killed.vram"), &bytes[..bytes.len() / 3]).expect("room");
    let files = [whole.clone(), path("ended.vram"), path("killed.vram"), snapshot];
    let mut view = Server::start(std::iter::once("view".as_ref()).chain(files.iter().map(|file| file.as_os_str())));
    let served = |name: &str| {
        let (head, served) = view.get(name);
        assert!(head.contains("accept-ranges: bytes"), "{head}");
        let mut opening = Opening::new(served.len() as u64);
        while let Some(range) = opening.wants() {
            opening.supply(range.start, &served[range.start as usize..range.end as usize]);
        }
        (opening.finish().unwrap_or_else(|| panic!("{name} has no index")).end_event(), served)
    };
    assert!(served("/files/0/whole.vram") == (end, bytes), "what has an index is served as it is");
    assert_eq!(served("/files/1/ended.vram").0, end);
    assert!(served("/files/2/killed.vram").0 < end);
    assert_eq!(served("/files/3/frag_a_expandable.vram").0, end);
    let (status, said) = view.interrupt();
    assert!(status.success() && said.contains("killed.vram") && !said.contains("whole.vram"), "{said}");
}

#[test]
fn a_recording_can_go_through_a_pipe() {
    let mut demo = Server::start(["demo"]);
    let mut recorder = record(&demo, Path::new("-"), &["--for=0.5s"]);
    let mut bytes = Vec::new();
    recorder.stdout.take().expect("it is piped").read_to_end(&mut bytes).expect("bytes come");
    assert!(wait(&mut recorder).success());
    assert!(recording(&bytes).end_event() > 0);
    assert!(demo.interrupt().0.success());
}

#[test]
fn the_newest_part_alone_is_kept_where_that_is_asked_for() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("newest.vram");
    let mut demo = Server::start(["demo"]);
    let mut recorder = record(&demo, &file, &["--for=6s", "--keep=1s", "--keep-bytes=1G"]);
    assert!(wait(&mut recorder).success());
    let recording = recording(&fs::read(&file).expect("written"));
    let kept_ns = recording.end_ns() - recording.start_ns();
    assert!(recording.first_event() > 0);
    assert!((800_000_000..3_000_000_000).contains(&kept_ns), "{kept_ns} ns");
    assert_eq!(recording.lost_events(), 0);
    assert!(demo.interrupt().0.success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_may_grow_no_more_is_whole() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("copy.vram");
    let mut demo = Server::start(["demo"]);
    // 60 blocks are 30 or 60 KiB, as the shell has it.
    wait_until("there is enough to record", || demo.get("/trace.vram").1.len() > 70_000);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 60 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_vramscope")]);
    let done = limited.args(["record", &demo.url, "-o"]).arg(&file).output().expect("there is a shell");
    let said = String::from_utf8(done.stderr).expect("text");
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("copy.vram: File too large"), "{said}");
    // Up to the last chunk that there was room for, and not a byte of the next.
    recording(&fs::read(&file).expect("written"));
    assert!(demo.interrupt().0.success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_what_follows_and_not_what_is_followed() {
    let mut demo = Server::start(["demo"]);
    let recorder = record(&demo, Path::new("/dev/full"), &[]).wait_with_output().expect("it ends by itself");
    let said = String::from_utf8(recorder.stderr).expect("text");
    assert_eq!(recorder.status.code(), Some(2));
    assert!(said.contains("/dev/full: No space left on device"), "{said}");
    assert!(demo.get("/healthz").0.contains(" 200 "));
    assert!(demo.interrupt().0.success());
}
