//! Events at a high rate to a native viewer and a file: none may be lost, and both must end with
//! what the pool holds.

use std::fmt;
use std::thread;
use std::time::Duration;

use vramscope_trace::{Recording, digest};

use super::{TIMEOUT, read_complete_file};
use crate::load::Load;
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::process::ProcessUsage;

/// Extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Events a second.
    pub rate: u64,
    /// Duration.
    pub time: Duration,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// Events a second that the program reached.
    pub rate: f64,
    /// Events of the recording.
    pub events: u64,
    /// Bytes sent to the viewer.
    pub viewer_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Times that the program waited for a full queue.
    pub waits: u64,
    /// Total time waited, in milliseconds.
    pub waited_ms: u64,
    /// Processors that the program used, recorder and server included.
    pub processors: f64,
    /// Digest of the last state in viewer and file.
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
/// Returns the first check that failed.
///
/// # Panics
/// Panics if the program does not run.
pub fn throughput(plan: Plan) -> Result<Throughput, String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("load.vram");
    let mut load = Load::start(&["--rate", &plan.rate.to_string(), "--record", &path.to_string_lossy()]);
    let viewer = NativeViewer::start(load.url(), FollowOptions::WHOLE);
    viewer.wait_for_event(1, TIMEOUT).map(drop)?;
    let (before, first) = (ProcessUsage::of(load.pid()).unwrap_or_default(), load.request("figures"));
    thread::sleep(plan.time);
    let (after, last) = (ProcessUsage::of(load.pid()).unwrap_or_default(), load.request("figures"));
    let snapshot = load.pause();
    let seen = viewer.wait_for_event(snapshot.events(), TIMEOUT)?;
    let same = |what: &str, is: u64, wanted: u64| {
        if is == wanted { Ok(()) } else { Err(format!("{what}: {is} instead of {wanted}")) }
    };
    let check_complete = |name: &str, recording: &Recording| {
        same(&format!("first event of {name}"), recording.first_event(), 0)?;
        same(&format!("lost events of {name}"), recording.lost_events(), 0)?;
        same(&format!("events of {name}"), recording.events(), snapshot.events())?;
        snapshot.check(recording.end_state(), recording.definitions()).map_err(|error| format!("{name}: {error}"))
    };
    check_complete("the viewer", &seen.recording)?;
    same("connections of the viewer", seen.connections, 1)?;
    same("events reported to the viewer as missed", seen.missed, 0)?;
    let (at_viewer, viewer_bytes) = (digest(seen.recording.end_state()), seen.bytes);
    drop(seen);
    let summary = load.stop();
    let (recording, file_bytes) = read_complete_file(&path)?;
    check_complete("the file", &recording)?;
    same("digest of the file", digest(recording.end_state()), at_viewer)?;
    let number = |name: &str| summary[name].as_u64().unwrap_or(u64::MAX);
    same("events of the summary", number("events"), snapshot.events())?;
    let event_count = |answer: &serde_json::Value| answer["events"].as_u64().unwrap_or(0);
    Ok(Throughput {
        rate: (event_count(&last) - event_count(&first)) as f64 / plan.time.as_secs_f64(),
        events: snapshot.events(),
        viewer_bytes,
        file_bytes,
        waits: number("waits"),
        waited_ms: number("waited_ms"),
        processors: (after.cpu_ms - before.cpu_ms) as f64 / plan.time.as_secs_f64() / 1e3,
        digest: at_viewer,
    })
}
