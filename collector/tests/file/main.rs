//! Files as they are written by a recorder: how large, and what becomes of them when they cannot be written any more.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use vramscope_collector::{Begin, Hub, Keep, Outputs, Recorder, RecordingFile, Summary};
use vramscope_trace::{Recording, RecordingInfo};

mod program;
use program::Program;

fn record(path: &Path, keep: Keep, hub: &Hub, rate: u64, time: Duration) -> Summary {
    let file = RecordingFile::create(path, keep).expect("a new file");
    let outputs = Outputs { file: Some(file), hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let clock = handle.clone();
    Program::new(handle, move || clock.now_ns()).run(rate, time, |_, _| ());
    recorder.stop()
}

fn open(bytes: &[u8], may_be_cut: bool) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a recording");
    assert!(may_be_cut || recording.finish().is_ok());
    recording
}

/// `cargo test --release -p vramscope-collector --test file sizes -- --nocapture --ignored` prints more of them, over a
/// longer time.
#[test]
fn recording_size_does_not_depend_on_viewers() {
    print_sizes(&[10_000], Duration::from_secs(1), 6.0);
}

#[test]
#[ignore = "takes half a minute, and says how large files are"]
fn recording_sizes_at_other_rates() {
    print_sizes(&[100, 1000, 10_000, 100_000, 500_000], Duration::from_secs(3), 100.0);
}

fn print_sizes(rates: &[u64], time: Duration, most: f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    for &rate in rates {
        for watched in [false, true] {
            let hub = Hub::default();
            let viewer = watched.then(|| hub.viewer(Begin::Newest));
            let summary = record(&path, Keep::default(), &hub, rate, time);
            drop(viewer);
            assert_eq!(summary.bytes, fs::metadata(&path).expect("it is there").len());
            assert_eq!(open(&fs::read(&path).expect("it is there"), false).events(), summary.events);
            let each = summary.bytes as f64 / summary.events as f64;
            let live: usize = hub.everything().iter().map(|chunk| chunk.bytes.len()).sum();
            let live = live as f64 / summary.events as f64;
            println!("{rate:>8} events/s, watched: {watched:<5} {each:6.2} bytes an event, {live:6.2} for viewers");
            assert!(each < most);
        }
    }
}

/// In the child, a folder to mount a small file system at.
#[cfg(target_os = "linux")]
const SMALL_DISK: &str = "VRAMSCOPE_SMALL_DISK";

/// Does nothing but in the child that the test below starts, which has the small disk.
#[cfg(target_os = "linux")]
#[test]
fn program_on_a_small_disk() {
    let Some(folder) = std::env::var_os(SMALL_DISK) else { return };
    let folder = Path::new(&folder);
    for keep in [Keep::default(), Keep { bytes: Some(1 << 20), time: None }] {
        let (path, hub) = (folder.join("a.vram"), Hub::default());
        let summary = record(&path, keep, &hub, 1_000_000, Duration::from_secs(1));
        let error = summary.file_error.expect("there is no room").to_string();
        assert!(error.contains("a.vram: No space left on device"), "{error}");
        let recording = open(&fs::read(&path).expect("it is there"), false);
        assert!((1..summary.events).contains(&recording.events()));
        let live: Vec<u8> = hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
        assert_eq!(open(&live, false).events(), summary.events, "the viewers go on");
        assert_eq!(fs::read_dir(folder).expect("it is there").count(), 1);
        fs::remove_file(path).expect("it is there");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_ends_the_file_but_not_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("this program");
    let script = "mount -t tmpfs -o size=900k none \"$1\" || exit 77; \"$0\" --exact program_on_a_small_disk";
    let mut command = std::process::Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(program).arg(folder.path());
    let output = command.env(SMALL_DISK, folder.path()).output();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output {
        Ok(output) if output.status.success() => assert!(said(&output.stdout).contains("1 passed")),
        Ok(output) if said(&output.stdout).contains("FAILED") => panic!("{}", said(&output.stdout)),
        _ => eprintln!("SKIPPED: this system lets nobody mount a small file system"),
    }
}

#[cfg(unix)]
#[test]
fn closed_pipe_has_received_whole_chunks() {
    use std::io::Read;
    use std::process::Command;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("every Unix has it").success());
    let (reading, theirs) = (path.clone(), 200_000);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; theirs];
        fs::File::open(reading).expect("it is there").read_exact(&mut bytes).expect("as much comes");
        bytes
    });
    let summary = record(&path, Keep::default(), &Hub::default(), 500_000, Duration::from_millis(500));
    let bytes = reader.join().expect("no panic");
    let error = summary.file_error.expect("nobody reads any more").to_string();
    assert!(error.contains("pipe: Broken pipe"), "{error}");
    assert!(open(&bytes, true).events() > 0);
}
