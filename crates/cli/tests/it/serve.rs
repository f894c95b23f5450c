//! Tests of `serve` with processes that push to it.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use tempfile::TempDir;
use vramscope_trace::{DeviceId, Recording, RecordingOpener, site_name};

use crate::process::{Server, vramscope, wait_until};

/// Reads a recording from its bytes.
fn recording(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a valid recording");
    recording.finish().expect("the recording is complete");
    recording
}

/// Downloads the merged recording.
fn download(serve: &Server) -> Recording {
    recording(&serve.get("/trace.vram").1)
}

/// Starts a demo that pushes to the server, as one rank of several.
fn demo(serve: &Server, rank: u32, steps: u64, file: &Path) -> Server {
    let (steps, rank) = (steps.to_string(), rank.to_string());
    let mut command =
        vramscope([OsStr::new("demo"), "--steps".as_ref(), steps.as_ref(), "--record".as_ref(), file.as_os_str()]);
    command.env("VRAMSCOPE_PUSH", serve.url.replacen("http", "ws", 1)).env("RANK", &rank).env("LOCAL_RANK", &rank);
    Server::start_command(command)
}

/// Returns the device with this name.
#[track_caller]
fn device(recording: &Recording, name: &str) -> DeviceId {
    let devices = &recording.info().devices;
    let found = devices.iter().find(|device| device.name == name);
    DeviceId(found.unwrap_or_else(|| panic!("no {name} among {devices:?}")).device)
}

/// Returns the segments, blocks and counters of a device at the end, with the names of sites.
fn memory(recording: &Recording, device: DeviceId) -> impl PartialEq + std::fmt::Debug {
    let (state, definitions) =
        (recording.end_state().device(device).expect("the device has events"), recording.definitions());
    let segments = state.segments().map(|s| (s.address, s.size, s.stream, s.pool, site_name(definitions, s.site)));
    let blocks = state
        .blocks()
        .map(|b| (b.address, b.size, b.requested, b.stream, b.pool, b.pending_free, site_name(definitions, b.site)));
    (segments.collect::<Vec<_>>(), blocks.collect::<Vec<_>>(), state.counters())
}

/// Returns the number of marks with a name.
fn marks(recording: &Recording, name: &str) -> usize {
    recording.annotations().iter().filter(|mark| recording.definitions().string(mark.name) == name).count()
}

#[test]
fn processes_are_merged_into_one_recording() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let all = path("all.vram");
    let mut serve = Server::start([OsStr::new("serve"), "--record".as_ref(), all.as_os_str()]);
    let mut other = demo(&serve, 1, 40, &path("1.vram"));
    let killed = demo(&serve, 0, 10_000, &path("0.vram"));
    wait_until("both processes are connected", || download(&serve).info().devices.len() == 2);
    wait_until("the first process has made requests", || {
        let so_far = download(&serve);
        let device = device(&so_far, "rank 0 · host memory");
        so_far.end_state().device(device).is_some_and(|device| device.events() > 500)
    });
    // Like the operating system's out-of-memory killer.
    drop(killed);
    wait_until("the disconnection is recorded", || marks(&download(&serve), "connection to the process lost") == 1);
    let mut restarted = demo(&serve, 0, 30, &path("0again.vram"));
    wait_until("both processes have ended", || marks(&download(&serve), "process ended") == 2);

    let so_far = download(&serve);
    for (file, name) in [("1.vram", "rank 1 · host memory"), ("0again.vram", "rank 0, run 2 · host memory")] {
        let own = recording(&fs::read(path(file)).expect("the demo has written its file"));
        let device = device(&so_far, name);
        assert_eq!(memory(&so_far, device), memory(&own, DeviceId(0)), "{name}");
        let info = so_far.info().devices.iter().find(|info| info.device == device.0).expect("the device is described");
        assert!(info.history_complete && info.process.starts_with("vramscope demo, process "), "{info:?}");
        // All events of the process and the mark of its end.
        let events = so_far.end_state().device(device).expect("the device has events").events();
        assert_eq!(events, own.end_event() + 1);
    }
    assert_eq!((so_far.lost_events(), so_far.info().devices.len()), (0, 3));
    assert!(other.interrupt().0.success() && restarted.interrupt().0.success());

    let (status, stderr) = serve.interrupt();
    assert!(status.success(), "{stderr}");
    for expected in [
        "VRAMSCOPE_PUSH=ws://127.0.0.1:",
        "rank 0 (vramscope demo, process",
        "joined; 2 connected",
        "disconnected; waiting for it to reconnect",
        "has ended",
    ] {
        assert!(stderr.contains(expected), "{expected:?} is not in {stderr}");
    }
    let bytes = fs::read(&all).expect("the server has written its file");
    assert_eq!(recording(&bytes).info(), so_far.info());
    let mut opening = RecordingOpener::new(bytes.len() as u64);
    while let Some(range) = opening.wanted_range() {
        opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    let by_index = opening.finish().expect("the file has an index");
    assert_eq!((by_index.end_event(), by_index.info().devices.len()), (so_far.end_event(), 3));
}

#[test]
fn page_can_record_and_mark() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut command = vramscope(["serve", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let mut serve = Server::start_listening(command);
    let token = serve.token().expect("commands take a token").to_owned();
    assert_eq!(serve.get("/commands").1, b"{\"allowed\":false,\"commands\":[\"record\",\"mark\"]}\n");
    let post = |name: &str, body: &str| serve.request("POST", &format!("/commands/{name}?token={token}"), body).0;
    assert!(post("mark", "{\"name\": \"early\"}").contains(" 500 "), "no process is connected");
    let client = demo(&serve, 1, 1000, &folder.path().join("1"));
    wait_until("the process is connected", || download(&serve).info().devices.len() == 1);
    assert!(post("mark", "{\"name\": \"here\"}").contains(" 200 "));
    assert!(post("record", "").contains(" 200 "));
    let files = fs::read_dir(folder.path()).expect("the folder can be read").flatten().map(|file| file.path());
    let files: Vec<_> = files.filter(|file| file.extension() == Some("vram".as_ref())).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(marks(&recording(&fs::read(file).expect("the file was written")), "here"), 1);
    drop(client);
    let (status, stderr) = serve.interrupt();
    assert!(
        status.success() && stderr.contains("VRAMSCOPE_PUSH=ws://127.0.0.1:") && !stderr.contains(&token),
        "{stderr}"
    );
}

#[test]
fn token_is_only_in_the_address() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut serve = Server::start(["serve", "--token", "secret+/="]);
    assert!(serve.url.ends_with("/?token=secret%2B%2F%3D"), "{}", serve.url);
    let mut client = demo(&serve, 0, 5, &folder.path().join("0.vram"));
    let (status, stderr) = client.interrupt();
    assert!(status.success() && !stderr.contains("push"), "{stderr}");
    let (status, stderr) = serve.interrupt();
    assert!(status.success() && stderr.contains("rank 0 (vramscope demo, process"), "{stderr}");
    assert!(stderr.contains("/?token=… (the token above) for each process"), "{stderr}");
    assert!(!stderr.contains("secret"), "{stderr}");
}

#[test]
fn demo_trains_without_the_server() {
    let mut command = vramscope(["demo", "--steps=5"]);
    command.env("VRAMSCOPE_PUSH", "ws://127.0.0.1:9/");
    let mut demo = Server::start_command(command);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (status, stderr) = demo.interrupt();
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("http://127.0.0.1:9/: "), "{stderr}");
}
