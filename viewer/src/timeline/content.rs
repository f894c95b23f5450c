//! The inputs of a timeline.

use std::ops::Range;

use vramscope_insight::spans::Marks;
use vramscope_trace::{DeviceId, Recording};

use crate::bands::VisibleBands;

/// The moment, the time and the bytes of a peak to mark on the timeline; a peak of
/// 0 bytes is not drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakMark {
    /// The first moment at which it was reached.
    pub event: u64,
    /// When it was reached.
    pub time_ns: u64,
    /// Bytes at the peak; a peak of 0 bytes is not drawn.
    pub bytes: u64,
}

/// The inputs of a timeline: recording, device, marks, peaks, bands and range of time.
pub struct TimelineContent<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The device.
    pub device: DeviceId,
    /// Spans and incidents.
    pub marks: &'a Marks,
    /// Peaks of the allocated and of the reserved bytes.
    pub peaks: [PeakMark; 2],
    /// Bands of memory outside the pool to draw.
    pub bands: VisibleBands,
    /// The range of time to show.
    pub range: Range<u64>,
}
