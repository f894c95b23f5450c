//! A viewer that stalls until the server skips ahead.
//!
//! The server must report exactly the missed events, and the viewer must then show what the pool
//! holds; a second viewer that reads all the time must miss nothing.

use std::thread;
use std::time::Duration;

use vramscope_trace::digest;

use super::TIMEOUT;
use super::chaos::{address, through};
use crate::load::Load;
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::process::ProcessUsage;
use crate::proxy::Proxy;

/// Stalls a viewer for `time` while the program makes `rate` events a second.
///
/// # Errors
/// Returns the first check that failed.
///
/// # Panics
/// Panics if the program does not run.
pub fn slow(rate: u64, time: Duration) -> Result<String, String> {
    let mut load = Load::start(&["--rate", &rate.to_string()]);
    // The proxy's small buffers make the stall visible to the server.
    let proxy = Proxy::start(address(load.url()));
    let viewer = NativeViewer::start(load.url(), FollowOptions::WHOLE);
    let stalled = NativeViewer::start(&through(&proxy, load.url()), FollowOptions::WHOLE);
    stalled.wait_for_event(1, TIMEOUT).map(drop)?;
    stalled.stall(time);
    thread::sleep(time + Duration::from_secs(2));
    let snapshot = load.pause();
    let resident = ProcessUsage::of(load.pid()).unwrap_or_default().resident_bytes >> 20;
    let mut digests = Vec::new();
    let mut lacking = Vec::new();
    for (name, watcher) in [("the stalled viewer", &stalled), ("the other viewer", &viewer)] {
        let seen = watcher.wait_for_event(snapshot.events(), TIMEOUT)?;
        let located = |error: String| format!("{name}: {error}");
        snapshot.check(seen.recording.end_state(), seen.recording.definitions()).map_err(located)?;
        let (lost, events) = (seen.recording.lost_events(), seen.recording.events());
        if lost != seen.missed || events + lost + seen.recording.first_event() != snapshot.events() {
            return Err(located(format!(
                "{events} events and {lost} lost of {}, {} reported",
                snapshot.events(),
                seen.missed
            )));
        }
        lacking.push(lost);
        digests.push(digest(seen.recording.end_state()));
    }
    match lacking[..] {
        [missed, 0] if missed > 0 && digests[0] == digests[1] => Ok(format!(
            "{rate} events a second: the viewer stalled for {time:?} was told of {missed} missed events of {} and \
             matches the pool; the other missed none; the program took {resident} MiB",
            snapshot.events()
        )),
        _ => Err(format!("missed events {lacking:?}, digests {digests:x?}")),
    }
}
