//! The result of an import besides its events.

use vramscope_trace::RecordingInfo;

/// The name and version of this crate, recorded as the writer of everything it produces.
pub(crate) const WRITER: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// The results of an import besides the events: the recording's description and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// The description of the recording, as passed to the function that created the sink, and the
    /// import's notes: the history is incomplete, entries did not fit, or values were ignored.
    pub info: RecordingInfo,
    /// Number of events passed to the sink: one for each entry of the source. Sources that do not
    /// list segments produce additional events as segments become known.
    pub events: u64,
    /// Number of contradictions: entries that did not fit the known memory state, and other values
    /// that were invalid and ignored.
    pub contradictions: u64,
}
