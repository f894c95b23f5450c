//! How old events are when they come on the screen.

use crate::lateness::Lateness;
use crate::model::{Model, Origin};

/// What was last drawn of a live recording.
#[derive(Debug, Default)]
pub(super) struct Age {
    /// The last moment, and its time.
    drawn: Option<(u64, u64)>,
    latency_ms: Option<[f64; 2]>,
    lateness: Lateness,
}

impl Age {
    /// A frame is on the canvas.
    pub(super) fn drawn(&mut self, model: &Model) {
        let recording = model.recording();
        let epoch_ns = recording.info().epoch_unix_ns;
        if model.origin() != Origin::Live || epoch_ns == 0 {
            *self = Self::default();
            return;
        }
        let newest = (recording.end_event(), recording.end_ns());
        let before = self.drawn.replace(newest);
        if let Some((_, time_ns)) = before.filter(|(event, _)| *event < newest.0) {
            let now_ms = js_sys::Date::now();
            // In two steps: a number of nanoseconds since 1970 has more digits than a JavaScript number.
            let age_ms = |time_ns: u64| now_ms - (epoch_ns.saturating_add(time_ns) / 1000) as f64 / 1000.0;
            self.latency_ms = Some([age_ms(newest.1), age_ms(time_ns)]);
            self.lateness.drawn(age_ms(newest.1));
        }
    }

    /// The age of the newest event when it was drawn, and of the oldest that was not drawn before, as far as it can have been.
    pub(super) fn latency_ms(&self) -> Option<[f64; 2]> {
        self.latency_ms
    }

    /// Seconds that the page is behind the program.
    pub(super) fn behind_s(&self) -> u64 {
        self.lateness.behind_s()
    }
}
