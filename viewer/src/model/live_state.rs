//! The state of the model that only live recordings need, and their memory limits.

use vramscope_trace::Recording;

/// Memory limit of a live recording, in bytes. Beyond it the page discards the oldest part, down to
/// half of the limit. At 100,000 events per second and 3.3 bytes per event (`docs/benchmarks.md`)
/// the page holds the last 7 to 13 minutes.
pub const LIVE_LIMIT_BYTES: usize = 256 << 20;
/// Memory limit of a live recording whose whole history was requested, in bytes. It is close to the
/// memory that a browser allows a page.
pub const WHOLE_LIMIT_BYTES: usize = 512 << 20;

/// Message to the user after the moment on the screen was discarded.
pub(super) const MOMENT_DISCARDED: &str =
    "The moment you were looking at has been discarded to save memory; this is the oldest one left.";

/// Message to the user after a link led to a moment before the part that the page holds.
pub(super) const LINK_TOO_EARLY: &str = "The link leads to a moment before the part that this page holds; this is the \
     oldest moment here. Press Load all to load the rest and go there.";

/// The state of the model that only live recordings need.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Whether received data has not been applied yet.
    pub(super) has_new_data: bool,
    /// Whether events were discarded since received data was last applied.
    pub(super) has_discarded: bool,
    /// Memory limit in bytes; `None` for files, which have none.
    pub(super) limit_bytes: Option<usize>,
    /// Number of lost and missed events in discarded parts.
    pub(super) lost_before: u64,
    /// Number of missed events in discarded parts.
    pub(super) missed_before: u64,
    /// Number of the last event received by the connection before, if the current connection could
    /// not resume there.
    pub(super) resume_event: Option<u64>,
    /// Message to show to the user once.
    pub(super) notice: Option<&'static str>,
    /// Event number of a link's moment, if it is before the part that the page holds.
    pub(super) linked_event: Option<u64>,
}

impl LiveState {
    /// Returns the number of events between the last one of the connection before and the first one
    /// of the current connection; 0 if the current connection has resumed.
    pub(super) fn unreceived_events(&self, recording: &Recording) -> u64 {
        self.resume_event.map_or(0, |event| recording.first_event().saturating_sub(event))
    }
}
