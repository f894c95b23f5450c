//! The state of the page for scripts.

use serde::Serialize;
use vramscope_trace::digest;

use crate::model::{Origin, PeakKind};
use crate::playback::SPEEDS;

use super::core::Session;
use super::parts::PageFacts;

/// The object that `window.vramscope.state()` returns.
#[derive(Serialize)]
struct StateObject<'a> {
    source: &'a str,
    live: bool,
    events: u64,
    lost_events: u64,
    event: u64,
    time_ns: u64,
    device: u16,
    allocated_bytes: u64,
    reserved_bytes: u64,
    active_bytes: u64,
    segments: usize,
    blocks: usize,
    fragmentation: f64,
    view: ViewObject<'a>,
    frame_ms: f64,
    memory_bytes: f64,
    connection: &'a str,
    received_bytes: f64,
    waiting_bytes: u32,
    read_bytes: f64,
    held_bytes: usize,
    first_event: u64,
    missed_events: u64,
    latency_ms: Option<f64>,
    latency_most_ms: Option<f64>,
    /// The moment of the peak of the allocated bytes.
    peak: u64,
}

/// The object `view` in [`StateObject`]. Addresses are strings, because JavaScript numbers cannot
/// hold all of them.
#[derive(Serialize)]
struct ViewObject<'a> {
    from_ns: u64,
    to_ns: u64,
    following: bool,
    playing: bool,
    speed: String,
    color: &'a str,
    selection: Option<String>,
    panes: Vec<&'a str>,
    /// The lines of text that a pane's picture shows under the pointer.
    pointer_text: Vec<&'a str>,
}

impl Session {
    /// Returns the state of the page as JSON, for `window.vramscope.state()`.
    pub(super) fn state_json(&self, facts: &PageFacts) -> String {
        let model = &self.model;
        let device = model.device_state();
        let counters = device.counters();
        let range = model.range();
        let state = StateObject {
            source: model.source(),
            live: model.origin() == Origin::Live,
            events: model.recording().end_event(),
            lost_events: model.lost_events(),
            event: model.state().event(),
            time_ns: model.time_ns(),
            device: model.device().0,
            allocated_bytes: counters.allocated,
            reserved_bytes: counters.reserved,
            active_bytes: counters.active,
            segments: device.segments().len(),
            blocks: device.blocks().len(),
            fragmentation: model.free_memory().space.fragmentation(),
            view: ViewObject {
                from_ns: range.start,
                to_ns: range.end,
                following: model.is_following(),
                playing: model.playback.is_playing(),
                speed: SPEEDS[model.playback.speed()].text(),
                color: model.color_by.name(),
                selection: model.selection().map(|address| format!("{address:#x}")),
                panes: self.panes.views().into_iter().flatten().map(|view| view.name()).collect(),
                pointer_text: self.pictures.iter().flat_map(|one| &one.pointer_text).map(String::as_str).collect(),
            },
            frame_ms: facts.frame_ms,
            memory_bytes: facts.memory_bytes,
            connection: facts.connection.name,
            received_bytes: facts.connection.received_bytes,
            waiting_bytes: facts.connection.waiting_bytes,
            read_bytes: facts.connection.read_bytes,
            held_bytes: model.recording().memory_bytes(),
            first_event: model.recording().first_event(),
            missed_events: model.missed_events(),
            latency_ms: facts.connection.latency_ms.map(|[newest, _]| newest),
            latency_most_ms: facts.connection.latency_ms.map(|[_, oldest]| oldest),
            peak: model.peak_event(PeakKind::Allocated),
        };
        serde_json::to_string(&state).unwrap_or_default()
    }

    /// Returns a checksum of the memory state on the screen, in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("{:016x}", digest(self.model.all_devices()))
    }
}
