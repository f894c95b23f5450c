//! The data of one device in a report.

use std::ops::Range;

use vramscope_trace::{
    Counters, DeviceId, DeviceState, FormatError, LifetimeSummary, MetricSummary, Metrics, MetricsOverTime, Recording,
    Replay, SiteBytes, live_bytes_by_site, metrics_over_time,
};

use crate::timeline::PeakMark;

/// The data of one device in a report: peaks, memory and sites at the peak of allocated bytes,
/// counters at the end, lifetimes, and fragmentation over time.
#[derive(Default)]
pub(super) struct DeviceSummary {
    pub(super) device: DeviceId,
    /// Peaks of the allocated and of the reserved bytes.
    pub(super) peaks: [PeakMark; 2],
    /// Event number of the peak of the allocated bytes.
    pub(super) peak_event: u64,
    /// Memory at the peak.
    pub(super) peak_state: DeviceState,
    /// Metrics at the peak.
    pub(super) metrics: Metrics,
    /// Live bytes by site at the peak, in descending order.
    pub(super) sites: Vec<SiteBytes>,
    /// Counters at the end.
    pub(super) end: Counters,
    /// Events of this device.
    pub(super) events: u64,
    /// Requests that failed.
    pub(super) ooms: u64,
    /// The number of allocations and their median lifetime.
    pub(super) lifetimes: LifetimeSummary,
    /// Highest fragmentation, 0 to 1, in equal slices of time.
    pub(super) fragmentation: Vec<f64>,
    /// Highest fragmentation and its mean over the recording.
    pub(super) fragmentation_summary: MetricSummary,
    /// Number of moments at which fragmentation was computed.
    pub(super) samples: usize,
}

impl DeviceSummary {
    /// Collects the data of a device with the given `lifetimes`, with its fragmentation in `slices`
    /// equal slices of `range`.
    pub(super) fn new(
        recording: &Recording,
        device: DeviceId,
        lifetimes: LifetimeSummary,
        range: &Range<u64>,
        slices: usize,
    ) -> Result<Self, FormatError> {
        let mut replay = Replay::new();
        let metrics = metrics_over_time(recording, device)?;
        let mut summary = Self {
            device,
            lifetimes,
            fragmentation: fragmentation_by_slice(&metrics, range, slices),
            fragmentation_summary: metrics.summary(Metrics::fragmentation),
            samples: metrics.len(),
            ..Self::default()
        };
        if let Some(series) = recording.series(device) {
            for (mark, peak) in summary.peaks.iter_mut().zip([series.peak_allocated(), series.peak_reserved()]) {
                let state = replay.seek(recording, peak.event)?;
                *mark = PeakMark { event: peak.event, time_ns: state.time_ns(), bytes: peak.bytes };
            }
            summary.peak_event = series.peak_allocated().event;
        }
        if let Some(peak) = replay.seek(recording, summary.peak_event)?.device(device) {
            summary.metrics = Metrics::at(peak, |_, _| true);
            summary.sites = live_bytes_by_site(peak);
            summary.peak_state = peak.clone();
        }
        if let Some(end) = recording.end_state().device(device) {
            (summary.end, summary.events, summary.ooms) = (end.counters(), end.events(), end.ooms());
        }
        Ok(summary)
    }
}

/// Returns the highest fragmentation (0 to 1) in `metrics` for each of `slices` equal slices of the
/// time `range`. A slice without a value of its own has the last value before it, or 0.
fn fragmentation_by_slice(metrics: &MetricsOverTime, range: &Range<u64>, slices: usize) -> Vec<f64> {
    let length = u128::from(range.end.saturating_sub(range.start));
    let mut samples = metrics.iter().map(|(_, time_ns, metrics)| (time_ns, metrics.fragmentation())).peekable();
    let mut last = 0.0;
    let of_slice = |slice: usize| {
        let end_ns = range.start + (length * slice as u128 / slices as u128) as u64;
        let mut highest = None;
        while let Some((_, value)) = samples.next_if(|(time_ns, _)| *time_ns <= end_ns) {
            highest = Some(value.max(highest.unwrap_or(0.0)));
            last = value;
        }
        highest.unwrap_or(last)
    };
    (1..=slices).map(of_slice).collect()
}
