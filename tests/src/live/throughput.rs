//! Many events a second to a native viewer and to a file at once: nothing may be lost, and both end with what the pool holds.

use std::fmt;
use std::thread;
use std::time::Duration;

use vramscope_trace::{Recording, digest};

use super::{PATIENCE, whole_file};
use crate::load::Load;
use crate::process::Taken;
use crate::watcher::{Manner, Watcher};

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Events a second.
    pub rate: u64,
    /// For how long.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// Events a second there really were.
    pub rate: f64,
    /// Events of the recording.
    pub events: u64,
    /// Bytes that the viewer was sent.
    pub viewer_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// How often the program waited because a queue was full.
    pub waits: u64,
    /// For how long.
    pub waited_ms: u64,
    /// The part of a processor that the program took, with all that records and serves.
    pub processors: f64,
    /// The digest of the last state, which is the same everywhere.
    pub digest: u64,
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, events, viewer_bytes, file_bytes, waits, waited_ms, processors, digest } = self;
        write!(f, "{rate:.0} events a second, {events} in all, none lost; digest {digest:016x} in viewer and file; ")?;
        write!(f, "{viewer_bytes} bytes to the viewer, {file_bytes} to the file; ")?;
        write!(f, "the program waited {waits} times, {waited_ms} ms, and took {processors:.2} processors")
    }
}

/// Records, follows and compares.
///
/// # Errors
/// What is not as it should be.
///
/// # Panics
/// Where the program does not run.
pub fn throughput(plan: Plan) -> Result<Throughput, String> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("load.vram");
    let mut load = Load::start(&["--rate", &plan.rate.to_string(), "--record", &path.to_string_lossy()]);
    let viewer = Watcher::start(load.url(), Manner::WHOLE);
    viewer.wait_for_event(1, PATIENCE).map(drop)?;
    let (before, first) = (Taken::by(load.pid()).unwrap_or_default(), load.ask("figures"));
    thread::sleep(plan.time);
    let (after, last) = (Taken::by(load.pid()).unwrap_or_default(), load.ask("figures"));
    let moment = load.moment();
    let seen = viewer.wait_for_event(moment.events(), PATIENCE)?;
    let same = |what: &str, is: u64, wanted: u64| {
        if is == wanted { Ok(()) } else { Err(format!("{what}: {is}, and should be {wanted}")) }
    };
    let whole = |who: &str, recording: &Recording| {
        same(&format!("first event of {who}"), recording.first_event(), 0)?;
        same(&format!("lost events of {who}"), recording.lost_events(), 0)?;
        same(&format!("events of {who}"), recording.events(), moment.events())?;
        moment.check(recording.end_state(), recording.definitions()).map_err(|error| format!("{who}: {error}"))
    };
    whole("the viewer", &seen.recording)?;
    same("connections of the viewer", seen.connections, 1)?;
    same("events that the viewer was told it missed", seen.missed, 0)?;
    let (at_viewer, viewer_bytes) = (digest(seen.recording.end_state()), seen.bytes);
    drop(seen);
    let summary = load.stop();
    let (recording, file_bytes) = whole_file(&path)?;
    whole("the file", &recording)?;
    same("digest of the file", digest(recording.end_state()), at_viewer)?;
    let number = |name: &str| summary[name].as_u64().unwrap_or(u64::MAX);
    same("events of the summary", number("events"), moment.events())?;
    let counted = |answer: &serde_json::Value| answer["events"].as_u64().unwrap_or(0);
    Ok(Throughput {
        rate: (counted(&last) - counted(&first)) as f64 / plan.time.as_secs_f64(),
        events: moment.events(),
        viewer_bytes,
        file_bytes,
        waits: number("waits"),
        waited_ms: number("waited_ms"),
        processors: (after.cpu_ms - before.cpu_ms) as f64 / plan.time.as_secs_f64() / 1e3,
        digest: at_viewer,
    })
}
