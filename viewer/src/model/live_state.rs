//! The part of the model that only live recordings need.

use vramscope_trace::Recording;

/// Memory limit of a live recording, in bytes: beyond it the page discards the oldest part, down to
/// half of the limit. At 100,000 events a second of 3.3 bytes each (`docs/benchmarks.md`) the page
/// holds the last 7 to 13 minutes.
pub const LIVE_LIMIT_BYTES: usize = 256 << 20;
/// Memory limit of a live recording whose whole history was requested, in bytes: near what a
/// browser grants a page.
pub const WHOLE_LIMIT_BYTES: usize = 512 << 20;

/// Message if the moment on the screen has been discarded.
pub(super) const MOMENT_DISCARDED: &str =
    "The moment you were looking at has been discarded to save memory; this is the oldest one left.";

/// Message if a link leads to a moment before the page's part of the recording.
pub(super) const LINK_TOO_EARLY: &str = "The link leads to a moment before the part that this page holds; this is the \
     oldest moment here. Press Load all to load the rest and go there.";

/// The part of the model that only live recordings need: whether received data waits to be shown,
/// the memory limit, lost and missed events of the discarded part, and a message to the user.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    /// Whether received data has not been applied yet.
    pub(super) has_new_data: bool,
    /// Whether events were discarded since received data was last applied.
    pub(super) has_discarded: bool,
    /// Memory limit; `None` for files.
    pub(super) limit_bytes: Option<usize>,
    /// Lost events in the discarded part.
    pub(super) lost_before: u64,
    /// Missed events in the discarded part.
    pub(super) missed_before: u64,
    /// The last event of an earlier connection, if this one could not resume there.
    pub(super) resume_event: Option<u64>,
    /// Message to show once.
    pub(super) notice: Option<&'static str>,
    /// The moment of a link, if it is before the held part.
    pub(super) linked_event: Option<u64>,
}

impl LiveState {
    /// Returns the number of events between the end of an earlier connection and the start of this
    /// one; 0 if the connection has resumed.
    pub(super) fn unreceived_events(&self, recording: &Recording) -> u64 {
        self.resume_event.map_or(0, |event| recording.first_event().saturating_sub(event))
    }
}
