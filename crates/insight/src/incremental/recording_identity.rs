//! What a recording is recognized by while it grows.

use vramscope_trace::Recording;

/// Properties by which a recording is recognized while it grows and its oldest part is dropped:
/// start time and source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingIdentity {
    epoch_unix_ns: u64,
    source: String,
}

impl RecordingIdentity {
    /// Returns the identity of `recording`.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let info = recording.info();
        Self { epoch_unix_ns: info.epoch_unix_ns, source: info.source.clone() }
    }
}
