//! The data of one device in a report.

use vramscope_insight::group::DeviceCategories;
use vramscope_insight::history::History;
use vramscope_insight::pools::FragmentationColumn;
use vramscope_trace::{
    Counters, DeviceId, DeviceState, FormatError, LifetimeSummary, MetricSummary, Metrics, MetricsOverTime, Recording,
    Replay, SiteBytes, live_bytes_by_site, metrics_over_time,
};
use vramscope_viewer::timeline::PeakMark;

/// The data of one device in a report: peaks, memory and sites at the peak of allocated bytes,
/// counters at the end, lifetimes, and highest fragmentation.
#[derive(Default)]
pub(super) struct DeviceSummary {
    pub(super) device: DeviceId,
    /// Peaks of the allocated and of the reserved bytes.
    pub(super) peaks: [PeakMark; 2],
    /// Event number of the peak of the allocated bytes.
    pub(super) peak_event: u64,
    /// Memory at the peak.
    pub(super) peak_state: DeviceState,
    /// The inferred categories of the device's blocks.
    pub(super) categories: DeviceCategories,
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
    /// Highest fragmentation and its mean over the recording.
    pub(super) fragmentation_summary: MetricSummary,
    /// The metrics at moments of the recording.
    pub(super) metrics_over_time: MetricsOverTime,
}

impl DeviceSummary {
    /// Collects the data of a device; `history` is complete.
    pub(super) fn new(recording: &Recording, device: DeviceId, history: &History) -> Result<Self, FormatError> {
        let mut replay = Replay::new();
        let metrics = metrics_over_time(recording, device)?;
        let mut summary = Self {
            device,
            // The event with index i leads to moment i + 1. Beyond 8 million events, times between
            // the stored ones are interpolated.
            lifetimes: history.lifetimes(device).map_or_else(LifetimeSummary::default, |lifetimes| {
                lifetimes.summary(|index| history.time_ns(index.saturating_add(1)))
            }),
            categories: history.categories(device),
            fragmentation_summary: metrics.summary(Metrics::fragmentation),
            metrics_over_time: metrics,
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

    /// Returns the fragmentation between the moments `edges`, one column between each two.
    pub(super) fn fragmentation_columns(&self, edges: &[u64]) -> Vec<FragmentationColumn> {
        let samples = self.metrics_over_time.iter();
        let mut samples = samples.map(|(event, _, metrics)| (event, metrics.fragmentation())).peekable();
        let mut value = samples.peek().map_or(0.0, |(_, first)| *first);
        let column = |moment: &u64| {
            let (mut lowest, mut highest) = (value, value);
            while let Some((_, next)) = samples.next_if(|(event, _)| event <= moment) {
                (value, lowest, highest) = (next, lowest.min(next), highest.max(next));
            }
            FragmentationColumn {
                moment: *moment,
                fragmentation: value,
                min_fragmentation: lowest,
                max_fragmentation: highest,
                ..FragmentationColumn::default()
            }
        };
        edges.iter().skip(1).map(column).collect()
    }
}
