//! A request whose placement is computed, and the allocator settings of a recording.

use vramscope_pool::{RecordedConf, Settings};
use vramscope_trace::{DeviceState, MempoolId, RecordingInfo, StreamId};

/// A request for memory whose placement is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Bytes that the program requests.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The private pool, or the default pool.
    pub owner: MempoolId,
    /// Bytes that the driver could provide; `None` if unknown, then the driver provides any number.
    pub device_free_bytes: Option<u64>,
}

impl PlacementRequest {
    /// Creates a request from the default pool on the device's default stream.
    #[must_use]
    pub fn new(device: &DeviceState, bytes: u64) -> Self {
        Self { bytes, stream: default_stream(device), ..Self::default() }
    }
}

/// Returns the stream that requests use unless another is named: stream 0, or the stream that most
/// memory is reserved for if no segment belongs to stream 0.
#[must_use]
pub fn default_stream(device: &DeviceState) -> StreamId {
    let mut reserved = std::collections::BTreeMap::<StreamId, u64>::new();
    for segment in device.segments() {
        let sum = reserved.entry(segment.stream).or_default();
        *sum = sum.saturating_add(segment.size);
    }
    if reserved.contains_key(&StreamId(0)) {
        return StreamId(0);
    }
    let most = reserved.into_iter().max_by_key(|&(stream, bytes)| (bytes, std::cmp::Reverse(stream)));
    most.map_or(StreamId(0), |(stream, _)| stream)
}

/// Returns the allocator settings under which a recording was made, as far as they are known; the
/// defaults for all others.
///
/// A cap on the reserved bytes is not part of them. Set
/// [`Settings::limit_bytes`] to the cap that is known or inferred
/// ([`ReservedCap`](crate::failures::ReservedCap)).
#[must_use]
pub fn recorded_settings(info: &RecordingInfo) -> Settings {
    RecordedConf::parse(&info.alloc_conf).settings
}

/// Returns the notes about a recording for the user: from its import, and about allocator settings
/// that are unknown or that the pool does not follow.
#[must_use]
pub fn recording_notes(info: &RecordingInfo) -> Vec<String> {
    let mut notes = info.import_notes.clone();
    notes.extend(RecordedConf::parse(&info.alloc_conf).notes());
    notes
}
