//! The state of the page for scripts.

use serde_json::json;
use vramscope_trace::digest;

use super::parts::PageFacts;
use super::session::Session;
use crate::device_map::ColorBy;
use crate::model::{Origin, PeakKind};
use crate::playback::SPEEDS;

impl Session {
    /// Returns the state of the page as JSON, for `window.vramscope.state()`.
    pub(super) fn state_json(&mut self, facts: &PageFacts) -> String {
        let color = self.views.iter().find_map(|view| view.color_by()).unwrap_or_default();
        let model = &self.model;
        let device = model.device_state();
        let counters = device.counters();
        let range = model.range();
        let state = json!({
            "source": model.source(),
            "live": model.origin() == Origin::Live,
            "events": model.recording().end_event(),
            "lost_events": model.lost_events(),
            "event": model.state().event(),
            "time_ns": model.time_ns(),
            "device": model.device().0,
            "allocated_bytes": counters.allocated,
            "reserved_bytes": counters.reserved,
            "active_bytes": counters.active,
            "segments": device.segments().len(),
            "blocks": device.blocks().len(),
            "fragmentation": model.free_memory().space.fragmentation(),
            "view": {
                "from_ns": range.start,
                "to_ns": range.end,
                "following": model.is_following(),
                "playing": model.playback.is_playing(),
                "speed": SPEEDS[model.playback.speed()].text(),
                "color": ColorBy::name(color),
                "selection": model.selection().map(|address| format!("{address:#x}")),
                "panes": self.panes.views().into_iter().flatten().map(|view| view.name()).collect::<Vec<_>>(),
                "pointer_text": self.sent.pointer_text.concat(),
            },
            "frame_ms": facts.frame_ms,
            "memory_bytes": facts.memory_bytes,
            "connection": facts.connection.name,
            "received_bytes": facts.connection.received_bytes,
            "waiting_bytes": facts.connection.waiting_bytes,
            "read_bytes": facts.connection.read_bytes,
            "held_bytes": model.recording().memory_bytes(),
            "first_event": model.recording().first_event(),
            "missed_events": model.missed_events(),
            "latency_ms": facts.connection.latency_ms.map(|[newest, _]| newest),
            "latency_most_ms": facts.connection.latency_ms.map(|[_, oldest]| oldest),
            "peak": model.peak_event(PeakKind::Allocated),
        });
        state.to_string()
    }

    /// Returns a checksum of the memory state on the screen, in hexadecimal digits.
    pub fn digest(&self) -> String {
        format!("{:016x}", digest(self.model.all_devices()))
    }
}
