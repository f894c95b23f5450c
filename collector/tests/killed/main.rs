//! A recorded program that is killed at any moment leaves a readable file, which had every event
//! while the program ran.
//!
//! The age of the oldest event that a file lacks is printed; on a machine with a free processor it
//! is at most 250 ms.
//!
//! `VRAMSCOPE_KILLS=200 cargo test --release -p vramscope-collector --test killed -- --nocapture`
//! kills 200 programs in place of 20.

#![allow(missing_docs)]
#![cfg(unix)]

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vramscope_collector::{Hub, Keep, Outputs, Recorder, RecordingFile, ViewFrom};
use vramscope_trace::{DecodedItem, Decoder, Event, MemorySink, Recording, RecordingInfo};

#[path = "../it/file/program.rs"]
mod program;
#[path = "../../src/wait_until.rs"]
mod wait_until;
use program::Program;
use wait_until::{TIMEOUT, wait_until};

/// Events per second of the recorded program. Unoptimized code cannot encode 500,000 for both a
/// file and a viewer.
const RATE: u64 = if cfg!(debug_assertions) { 100_000 } else { 500_000 };
/// Age of the oldest lost event, in milliseconds, above which the result of a kill is printed.
const SHOWN_AGE_MS: f64 = 125.0;
/// Maximum time that a program runs before it is killed.
const MAX_LIFE: Duration = Duration::from_millis(1000);
/// Set in the child process: the file to record to.
const FILE: &str = "VRAMSCOPE_KILLED_FILE";
/// Set in the child process: one of [`MODES`] or [`SLOW`]. `watched` adds a viewer, `newest` keeps
/// only the newest part of the recording.
const MODE: &str = "VRAMSCOPE_KILLED_MODE";
const MODES: [&str; 3] = ["", "watched", "newest"];
/// The mode of a program so slow that its chunks end by their age, not because they are full.
const SLOW: &str = "slow";
const SLOW_RATE: u64 = 5000;
/// Prefix of the line that the child prints after each burst; the time and the number of events
/// follow.
const REPORT: &str = "report ";
const NEWEST_BYTES: u64 = 1 << 20;

/// Runs only in the child process that the test below starts.
#[test]
fn killed_program() {
    let (Some(path), Ok(mode)) = (env::var_os(FILE), env::var(MODE)) else { return };
    let keep = Keep { bytes: (mode == "newest").then_some(NEWEST_BYTES), time: None };
    let file = RecordingFile::create(Path::new(&path), keep).expect("the file can be created");
    let hub = Hub::default();
    let _viewer = (mode == "watched").then(|| hub.viewer(ViewFrom::Newest));
    let outputs = Outputs { file: Some(file), hub: Some(hub), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let clock = handle.clone();
    let rate = if mode == SLOW { SLOW_RATE } else { RATE };
    Program::new(handle, move || clock.now_ns()).run(rate, TIMEOUT, |time_ns, events| {
        writeln!(io::stdout(), "{REPORT}{time_ns} {events}").expect("the test reads stdout");
    });
}

fn start(path: &Path, mode: &str) -> Child {
    let program = env::current_exe().expect("the test executable has a path");
    let mut command = Command::new(program);
    command.args(["--exact", "killed_program"]).env(FILE, path).env(MODE, mode);
    command.arg("--nocapture").stdout(Stdio::piped()).spawn().expect("the child starts")
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_nanos() as u64
}

/// Decodes a file. Returns the number of events before it and its events.
fn events(bytes: &[u8]) -> (u64, Vec<Event>) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let (mut first, mut events) = (0, Vec::new());
    while let Some(item) = decoder.next_item().expect("whole chunks, then at most a part of one") {
        match item {
            DecodedItem::Event(event) => events.push(event),
            DecodedItem::FullState(state) if events.is_empty() => first = state.event(),
            _ => {}
        }
    }
    (first, events)
}

/// Returns the first `count` events that every program makes.
fn expected(count: usize) -> Vec<Event> {
    let mut program = Program::new(MemorySink::default(), || 0);
    while program.sink.events.len() < count {
        program.block();
    }
    program.sink.events
}

/// Parses a program's output: times, and the number of events until then.
fn reports(output: &str) -> impl Iterator<Item = (u64, u64)> {
    // The last line may be incomplete.
    let lines = output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.strip_prefix(REPORT));
    lines.map(|report| {
        let (time_ns, events) = report.split_once(' ').expect("two numbers");
        (time_ns.parse().expect("a number"), events.parse().expect("a number"))
    })
}

/// The result of one kill.
struct KillResult {
    /// Age of the oldest event that the file lacks.
    lost_age_ms: f64,
    events: u64,
    seconds: f64,
    bytes: u64,
}

fn kill(path: &Path, mode: &str, after: Duration) -> KillResult {
    // The file of an earlier program would look like the start of this one.
    let _ = fs::remove_file(path);
    let mut child = start(path, mode);
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let listener = std::thread::spawn(move || {
        let mut output = String::new();
        stdout.read_to_string(&mut output).map(|_| output)
    });
    wait_until("the file is not empty", || fs::metadata(path).is_ok_and(|file| file.len() > 0));
    std::thread::sleep(after);
    let killed_ns = unix_ns();
    child.kill().expect("the child runs");
    child.wait().expect("the child has ended");

    let bytes = fs::read(path).expect("the file exists");
    let mut recording = Recording::new();
    recording.push(&bytes).expect("the file is a valid recording");
    assert_eq!(recording.lost_events(), 0);
    let epoch_ns = recording.info().epoch_unix_ns;
    let (first, events) = events(&bytes);
    assert_eq!(recording.end_event(), first + events.len() as u64);
    if mode == "newest" {
        assert!(bytes.len() as u64 <= NEWEST_BYTES);
    } else {
        assert_eq!(first, 0);
    }
    let expected = expected(first as usize + events.len());
    let same = events.iter().zip(&expected[first as usize..]).all(|(event, expected)| event.kind == expected.kind);
    assert!(same, "the file differs from the program's events");
    // The file is complete up to the last report whose events it has.
    let output = listener.join().expect("the listener does not panic").expect("the output is text");
    let end = recording.end_event();
    let mut complete_ns = 0;
    let mut missing = reports(&output).skip_while(|&(time_ns, events)| {
        complete_ns = if events <= end { time_ns } else { complete_ns };
        events <= end
    });
    let is_missing = missing.next().is_some();
    let age_ns = if is_missing { killed_ns.saturating_sub(epoch_ns + complete_ns) } else { 0 };
    let (made_ns, made) = reports(&output).last().unwrap_or_default();
    let lost_age_ms = age_ns as f64 / 1e6;
    if lost_age_ms > SHOWN_AGE_MS {
        println!("  {lost_age_ms:.0} ms lost, killed after {after:.0?} {mode}");
    }
    KillResult { lost_age_ms, events: made, seconds: made_ns as f64 / 1e9, bytes: bytes.len() as u64 }
}

#[test]
fn file_of_a_killed_program_is_readable() {
    if env::var_os(FILE).is_some() {
        return;
    }
    let kills: u64 = env::var("VRAMSCOPE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("killed.vram");
    // Multiples of the golden ratio spread the times of the kills evenly, independently of any
    // period in the program.
    let moment = |n: u64| MAX_LIFE.mul_f64((n as f64 * 0.618_034).fract());
    let fast = (0..kills).map(|n| kill(&path, MODES[n as usize % MODES.len()], moment(n))).collect();
    print_results(fast);
    print_results((0..kills / 4).map(|n| kill(&path, SLOW, moment(n))).collect());
}

/// Reads a program's output until it reports events. Returns their number.
fn first_events(output: &mut BufReader<ChildStdout>) -> u64 {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(output.read_line(&mut line).expect("the output is text") > 0, "the program has ended");
        if let Some((_, events)) = reports(&line).find(|(_, events)| *events > 0) {
            return events;
        }
    }
}

#[test]
fn events_reach_the_file_of_a_running_program() {
    if env::var_os(FILE).is_some() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for mode in ["", "watched", SLOW] {
        let path = folder.path().join(format!("running-{mode}.vram"));
        let mut child = start(&path, mode);
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let made = first_events(&mut output);
        // The program continues to run and does not flush its recording.
        let drain = std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        wait_until("the file has the events", || {
            let mut recording = Recording::new();
            fs::read(&path).is_ok_and(|bytes| recording.push(&bytes).is_ok()) && recording.end_event() >= made
        });
        assert!(child.try_wait().expect("the child can be asked").is_none(), "the program has ended");
        child.kill().expect("the child runs");
        child.wait().expect("the child has ended");
        drain.join().expect("the reader does not panic").expect("the output can be read");
        let (_, events) = events(&fs::read(&path).expect("the file exists"));
        assert!(events.len() as u64 >= made, "{} of {made} events", events.len());
    }
}

/// Prints a summary.
fn print_results(results: Vec<KillResult>) {
    let mut ages: Vec<_> = results.iter().map(|result| result.lost_age_ms).collect();
    ages.sort_by(f64::total_cmp);
    let (median, worst) = (ages[ages.len() / 2], ages[ages.len() - 1]);
    let events: u64 = results.iter().map(|result| result.events).sum();
    let seconds: f64 = results.iter().map(|result| result.seconds).sum();
    let bytes: u64 = results.iter().map(|result| result.bytes).sum();
    println!(
        "{} programs killed at {:.0} events/s; all files open ({bytes} bytes in total); age of the oldest lost \
         event: median {median:.0} ms, worst {worst:.0} ms",
        results.len(),
        events as f64 / seconds,
    );
}
