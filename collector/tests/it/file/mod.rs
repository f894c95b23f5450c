//! Recording files: their size, and what happens when writing fails.

use std::fs;
use std::path::Path;
use std::time::Duration;

use vramscope_collector::{Hub, Keep, Outputs, Recorder, RecordingFile, Summary, ViewFrom};
use vramscope_trace::{Chunk, Recording, RecordingInfo};

mod program;
use program::Program;

/// Maximum size of an event in a file, in bytes, on average.
const BYTES_PER_EVENT: u64 = 5;
/// Maximum size of a chunk without its events, in bytes.
const BYTES_PER_CHUNK: u64 = 1 << 10;

fn record(path: &Path, keep: Keep, hub: &Hub, rate: u64, time: Duration) -> Summary {
    let file = RecordingFile::create(path, keep).expect("the file can be created");
    let outputs = Outputs { file: Some(file), hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let clock = handle.clone();
    Program::new(handle, move || clock.now_ns()).run(rate, time, |_, _| ());
    recorder.stop()
}

fn open(bytes: &[u8], may_be_cut: bool) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a valid recording");
    assert!(may_be_cut || recording.finish().is_ok());
    recording
}

/// [`recording_sizes_at_other_rates`] prints the sizes at more rates, over a longer time.
#[test]
fn recording_size_does_not_depend_on_viewers() {
    print_sizes(&[10_000], Duration::from_secs(1));
}

#[test]
#[ignore = "a measurement that takes half a minute"]
fn recording_sizes_at_other_rates() {
    print_sizes(&[100, 1000, 10_000, 100_000, 500_000], Duration::from_secs(3));
}

/// Returns the number of chunks of a file.
fn chunks(bytes: &[u8]) -> u64 {
    let (mut count, mut rest) = (0, bytes);
    while !rest.is_empty() {
        let chunk = Chunk::read(rest, 0).expect("a valid chunk").expect("a whole chunk");
        (count, rest) = (count + 1, &rest[chunk.bytes.len()..]);
    }
    count
}

/// Records at each rate, prints the sizes of the files and checks them. The number of chunks in a
/// file depends on the machine's speed; the size of a chunk does not.
fn print_sizes(rates: &[u64], time: Duration) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    for &rate in rates {
        for watched in [false, true] {
            let hub = Hub::default();
            let viewer = watched.then(|| hub.viewer(ViewFrom::Newest));
            let summary = record(&path, Keep::default(), &hub, rate, time);
            drop(viewer);
            assert_eq!(summary.bytes, fs::metadata(&path).expect("the file exists").len());
            let bytes = fs::read(&path).expect("the file exists");
            assert_eq!(open(&bytes, false).events(), summary.events);
            let max_bytes = BYTES_PER_EVENT * summary.events + BYTES_PER_CHUNK * chunks(&bytes);
            assert!(summary.bytes < max_bytes, "{rate} events/s: {} bytes of {max_bytes}", summary.bytes);
            let per_event = summary.bytes as f64 / summary.events as f64;
            let live: usize = hub.everything().iter().map(|chunk| chunk.bytes.len()).sum();
            let live = live as f64 / summary.events as f64;
            println!("{rate:>8} events/s, watched: {watched:<5} {per_event:6.2} bytes/event, {live:6.2} for viewers");
        }
    }
}

/// Set in the child process: the folder where a small file system is mounted.
#[cfg(target_os = "linux")]
const SMALL_DISK: &str = "VRAMSCOPE_SMALL_DISK";

/// Runs only in the child process of the test below, which mounts the small file system.
#[cfg(target_os = "linux")]
#[test]
fn program_on_a_small_disk() {
    let Some(folder) = std::env::var_os(SMALL_DISK) else { return };
    let folder = Path::new(&folder);
    for keep in [Keep::default(), Keep { bytes: Some(1 << 20), time: None }] {
        let (path, hub) = (folder.join("a.vram"), Hub::default());
        let summary = record(&path, keep, &hub, 1_000_000, Duration::from_secs(1));
        let error = summary.file_error.expect("the disk is full").to_string();
        assert!(error.contains("a.vram: No space left on device"), "{error}");
        let recording = open(&fs::read(&path).expect("the file exists"), false);
        assert!((1..summary.events).contains(&recording.events()));
        let live: Vec<u8> = hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
        assert_eq!(open(&live, false).events(), summary.events, "viewers still receive every event");
        assert_eq!(fs::read_dir(folder).expect("the file exists").count(), 1);
        fs::remove_file(path).expect("the file exists");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_ends_the_file_but_not_the_program() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = std::env::current_exe().expect("the test executable has a path");
    let script = "mount -t tmpfs -o size=900k none \"$1\" || exit 77; \"$0\" --exact file::program_on_a_small_disk";
    let mut command = std::process::Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(program).arg(folder.path());
    let output = command.env(SMALL_DISK, folder.path()).output();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output {
        Ok(output) if output.status.success() => assert!(text(&output.stdout).contains("1 passed")),
        Ok(output) if text(&output.stdout).contains("FAILED") => panic!("{}", text(&output.stdout)),
        _ => eprintln!("SKIPPED: mounting a file system is not permitted"),
    }
}

#[cfg(unix)]
#[test]
fn closed_pipe_has_received_whole_chunks() {
    use std::io::Read;
    use std::process::Command;

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo is installed").success());
    let (reader_path, read_bytes) = (path.clone(), 200_000);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; read_bytes];
        fs::File::open(reader_path)
            .expect("the file exists")
            .read_exact(&mut bytes)
            .expect("the recorder writes that much");
        bytes
    });
    let summary = record(&path, Keep::default(), &Hub::default(), 500_000, Duration::from_millis(500));
    let bytes = reader.join().expect("the reader does not panic");
    let error = summary.file_error.expect("the reader closed the pipe").to_string();
    assert!(error.contains("pipe: Broken pipe"), "{error}");
    assert!(open(&bytes, true).events() > 0);
}
