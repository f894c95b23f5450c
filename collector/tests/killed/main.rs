//! A recorded program that is killed at any moment leaves a file that opens, and that holds everything older than 250
//! ms.
//!
//! `VRAMSCOPE_KILLS=200 cargo test --release -p vramscope-collector --test killed -- --nocapture` kills 200.

#![allow(missing_docs)]
#![cfg(unix)]

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_collector::{Begin, Hub, Keep, Outputs, Recorder, RecordingFile};
use vramscope_trace::{DecodedItem, Decoder, Event, MemorySink, Recording, RecordingInfo};

#[path = "../file/program.rs"]
mod program;
use program::Program;

/// Where nothing is optimized, encoding so many events for a file and for a viewer would take all of a processor.
const RATE: u64 = if cfg!(debug_assertions) { 100_000 } else { 500_000 };
const PROMISE_MS: f64 = 250.0;
/// The longest that a program lives.
const LIFE: Duration = Duration::from_millis(1000);
/// In the child, the file to record to.
const FILE: &str = "VRAMSCOPE_KILLED_FILE";
/// In the child, what else is asked for: a viewer, the newest part alone.
const MODE: &str = "VRAMSCOPE_KILLED_MODE";
const MODES: [&str; 3] = ["", "watched", "newest"];
/// A program whose chunks are cut by the clock, not because they are full.
const SLOW: &str = "slow";
const SLOW_RATE: u64 = 5000;
/// What the child says at every beat, before the time and how many events there were until then.
const BEAT: &str = "beat ";
const NEWEST_BYTES: u64 = 1 << 20;

/// Does nothing but in the child that the test below starts.
#[test]
fn killed_program() {
    let (Some(path), Ok(mode)) = (env::var_os(FILE), env::var(MODE)) else { return };
    let keep = Keep { bytes: (mode == "newest").then_some(NEWEST_BYTES), time: None };
    let file = RecordingFile::create(Path::new(&path), keep).expect("a new file");
    let hub = Hub::default();
    let _viewer = (mode == "watched").then(|| hub.viewer(Begin::Newest));
    let outputs = Outputs { file: Some(file), hub: Some(hub), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let clock = handle.clone();
    let rate = if mode == SLOW { SLOW_RATE } else { RATE };
    Program::new(handle, move || clock.now_ns()).run(rate, 10 * LIFE, |time_ns, events| {
        writeln!(io::stdout(), "{BEAT}{time_ns} {events}").expect("the test listens");
    });
}

fn start(path: &Path, mode: &str) -> Child {
    let program = env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "killed_program"]).env(FILE, path).env(MODE, mode);
    command.arg("--nocapture").stdout(Stdio::piped()).spawn().expect("it starts")
}

/// Waits until there is a recording.
fn wait_for_head(path: &Path) {
    let since = Instant::now();
    while fs::metadata(path).map_or(0, |file| file.len()) == 0 {
        assert!(since.elapsed() < Duration::from_secs(30), "the recording begins at once");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_nanos() as u64
}

/// The events in the file, which are the program's and in its order, and how many came before them.
fn events(bytes: &[u8]) -> (u64, Vec<Event>) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let (mut first, mut events) = (0, Vec::new());
    while let Some(item) = decoder.next_item().expect("whole chunks, and the beginning of one") {
        match item {
            DecodedItem::Event(event) => events.push(event),
            DecodedItem::FullState(state) if events.is_empty() => first = state.event(),
            _ => {}
        }
    }
    (first, events)
}

/// What the program does in its life, however long that is.
fn expected(count: usize) -> Vec<Event> {
    let mut program = Program::new(MemorySink::default(), || 0);
    while program.sink.events.len() < count {
        program.block();
    }
    program.sink.events
}

/// What a program said of itself: the time, and how many events there were until then.
fn beats(said: &str) -> impl Iterator<Item = (u64, u64)> {
    // The last may be cut.
    let lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.strip_prefix(BEAT));
    lines.map(|beat| {
        let (time_ns, events) = beat.split_once(' ').expect("two numbers");
        (time_ns.parse().expect("a number"), events.parse().expect("a number"))
    })
}

/// What a killed program left.
struct Left {
    /// How old the oldest event was that is not there.
    age_ms: f64,
    events: u64,
    seconds: f64,
    bytes: u64,
}

fn kill(path: &Path, mode: &str, after: Duration) -> Left {
    // What another left would look like the beginning of this one.
    let _ = fs::remove_file(path);
    let mut child = start(path, mode);
    let mut stdout = child.stdout.take().expect("it is piped");
    let listener = std::thread::spawn(move || {
        let mut said = String::new();
        stdout.read_to_string(&mut said).map(|_| said)
    });
    wait_for_head(path);
    std::thread::sleep(after);
    let killed_ns = unix_ns();
    child.kill().expect("it runs");
    child.wait().expect("it is gone");

    let bytes = fs::read(path).expect("the file is there");
    let mut recording = Recording::new();
    recording.push(&bytes).expect("it opens");
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
    assert!(same, "nothing is missing and nothing is changed");
    // What is not there was made after the last beat at which everything was.
    let said = listener.join().expect("no panic").expect("text");
    let end = recording.end_event();
    let mut whole_ns = 0;
    let mut missing = beats(&said).skip_while(|&(time_ns, events)| {
        whole_ns = if events <= end { time_ns } else { whole_ns };
        events <= end
    });
    let is_missing = missing.next().is_some();
    let age_ns = if is_missing { killed_ns.saturating_sub(epoch_ns + whole_ns) } else { 0 };
    let (made_ns, made) = beats(&said).last().unwrap_or_default();
    let age_ms = age_ns as f64 / 1e6;
    if age_ms > PROMISE_MS / 2.0 {
        println!("  {age_ms:.0} ms, killed after {after:.0?} {mode}");
    }
    Left { age_ms, events: made, seconds: made_ns as f64 / 1e9, bytes: bytes.len() as u64 }
}

#[test]
fn events_older_than_250_ms_survive_a_kill() {
    if env::var_os(FILE).is_some() {
        return;
    }
    let kills: u64 = env::var("VRAMSCOPE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("killed.vram");
    // Spread over the life by the golden ratio, which no period in there fits.
    let moment = |n: u64| LIFE.mul_f64((n as f64 * 0.618_034).fract());
    let fast = (0..kills).map(|n| kill(&path, MODES[n as usize % MODES.len()], moment(n))).collect();
    let worst_of_fast = tell(fast);
    let worst_of_slow = tell((0..kills / 4).map(|n| kill(&path, SLOW, moment(n))).collect());
    assert!(worst_of_fast < PROMISE_MS && worst_of_slow < PROMISE_MS);
}

/// Says what was left; how old in ms the oldest event was that is nowhere.
fn tell(left: Vec<Left>) -> f64 {
    let mut ages: Vec<_> = left.iter().map(|left| left.age_ms).collect();
    ages.sort_by(f64::total_cmp);
    let (median, worst) = (ages[ages.len() / 2], ages[ages.len() - 1]);
    let events: u64 = left.iter().map(|left| left.events).sum();
    let seconds: f64 = left.iter().map(|left| left.seconds).sum();
    let bytes: u64 = left.iter().map(|left| left.bytes).sum();
    println!(
        "{} kills of programs that made {:.0} events/s; all files open, {bytes} bytes in all; the oldest event that is \
         not there was {median:.0} ms old in the median, {worst:.0} ms at worst",
        left.len(),
        events as f64 / seconds,
    );
    worst
}
