//! The figures of one device of a recording, to compare them with another's.

use vramscope_trace::{
    Churn, DeviceId, DeviceState, FormatError, MetricSummary, Metrics, Recording, metrics_over_time,
};

use crate::difference::MomentFigures;
use crate::placement::recorded_settings;

/// Size in bytes of the request for which [`DeviceTotals`] says what share of the free bytes is too
/// fragmented to serve it: 16 MiB, the first power of two above 10 MiB. Larger requests that fit no
/// free block make PyTorch's allocator reserve a segment of their own size.
pub const UNUSABLE_REQUEST_BYTES: u64 = 16 << 20;

/// The figures of one device of a recording: numbers of events and allocations, bytes at the end,
/// at their peaks and at the compared moment, and fragmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTotals {
    /// Number of events on the device.
    pub events: u64,
    /// Allocated bytes at the end.
    pub allocated_bytes: u64,
    /// Reserved bytes at the end.
    pub reserved_bytes: u64,
    /// Peak of allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Peak of reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Number of out-of-memory events.
    pub ooms: u64,
    /// Fragmentation (see [`FreeSpace::fragmentation`](vramscope_trace::FreeSpace::fragmentation))
    /// at the first moment of the peak of allocated bytes.
    pub peak_fragmentation: f64,
    /// Fragmentation at the end.
    pub fragmentation: f64,
    /// Highest fragmentation and its mean over time, from [`metrics_over_time`].
    pub fragmentation_over_time: MetricSummary,
    /// Highest [unusable share](Metrics::unusable_share) of the free bytes for a request of
    /// [`UNUSABLE_REQUEST_BYTES`], and its mean over time.
    pub unusable_share_over_time: MetricSummary,
    /// The recorded allocations, freed ones included.
    pub churn: Churn,
    /// The compared moment.
    pub moment: u64,
    /// Counters, free memory and numbers of blocks and segments at the compared moment.
    pub at_moment: MomentFigures,
}

/// Memory states of one device, from which its totals are computed.
pub(super) struct DeviceStates<'a> {
    /// At the first moment of the peak of allocated bytes.
    pub(super) peak: &'a DeviceState,
    /// At the compared moment.
    pub(super) moment: &'a DeviceState,
    /// At the end.
    pub(super) end: &'a DeviceState,
}

impl DeviceTotals {
    /// Computes the totals of a device; `moment` is the compared moment.
    pub(super) fn new(
        recording: &Recording,
        device: DeviceId,
        states: &DeviceStates<'_>,
        moment: u64,
        churn: Churn,
    ) -> Result<Self, FormatError> {
        let metrics = metrics_over_time(recording, device)?;
        let peaks =
            recording.series(device).map(|series| (series.peak_allocated().bytes, series.peak_reserved().bytes));
        let (peak_allocated_bytes, peak_reserved_bytes) = peaks.unwrap_or_default();
        Ok(Self {
            events: states.end.events(),
            allocated_bytes: states.end.counters().allocated,
            reserved_bytes: states.end.counters().reserved,
            peak_allocated_bytes,
            peak_reserved_bytes,
            ooms: states.end.ooms(),
            peak_fragmentation: states.peak.free_space().fragmentation(),
            fragmentation: states.end.free_space().fragmentation(),
            fragmentation_over_time: metrics.summary(Metrics::fragmentation),
            unusable_share_over_time: metrics.summary(|metrics| metrics.unusable_share(UNUSABLE_REQUEST_BYTES)),
            churn,
            moment,
            at_moment: MomentFigures::of(states.moment, &recorded_settings(recording.info())),
        })
    }
}
