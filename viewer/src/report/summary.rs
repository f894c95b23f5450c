//! The data of one device in a report.

use std::ops::Range;

use vramscope_trace::{
    Counters, DeviceId, DeviceState, FormatError, Metrics, Recording, Replay, SiteBytes, live_bytes_by_site,
};

use crate::timeline::PeakMark;

/// The data of one device in a report.
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
    /// Fragmentation, 0 to 1, at the ends of equal slices of time.
    pub(super) fragmentation: Vec<f64>,
}

impl DeviceSummary {
    /// Collects the data of a device, with its fragmentation at the ends of `slices` equal slices
    /// of `range`.
    pub(super) fn new(
        recording: &Recording,
        device: DeviceId,
        range: &Range<u64>,
        slices: usize,
    ) -> Result<Self, FormatError> {
        let mut replay = Replay::new();
        let mut fragmentation = Vec::with_capacity(slices);
        let length = u128::from(range.end.saturating_sub(range.start));
        for slice in 1..=slices {
            let time_ns = range.start + (length * slice as u128 / slices as u128) as u64;
            let state = replay.seek(recording, recording.event_at_time(time_ns))?;
            fragmentation.push(state.device(device).map_or(0.0, |device| device.free_space().fragmentation()));
        }
        let mut summary = Self {
            device,
            peaks: Default::default(),
            peak_event: 0,
            peak_state: DeviceState::default(),
            metrics: Metrics::default(),
            sites: Vec::new(),
            end: Counters::default(),
            events: 0,
            ooms: 0,
            fragmentation,
        };
        if let Some(series) = recording.series(device) {
            for (mark, peak) in summary.peaks.iter_mut().zip([series.peak_allocated(), series.peak_reserved()]) {
                let state = replay.seek(recording, peak.event)?;
                *mark = PeakMark { time_ns: state.time_ns(), bytes: peak.bytes };
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
