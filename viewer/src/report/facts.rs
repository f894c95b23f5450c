//! What a report says of a device, worked out before anything is drawn.

use std::ops::Range;

use vramscope_trace::{Counters, DeviceId, DeviceState, FormatError, Holder, Metrics, Recording, Replay, holders};

use crate::timeline::PeakMark;

/// A device in a report.
pub(super) struct Facts {
    pub(super) device: DeviceId,
    /// The most allocated and the most reserved bytes.
    pub(super) peaks: [PeakMark; 2],
    /// The moment of the most allocated bytes.
    pub(super) peak_event: u64,
    /// Its memory at that moment.
    pub(super) peak: DeviceState,
    /// What there is to say of it in figures.
    pub(super) metrics: Metrics,
    /// What holds the memory at that moment, the most first.
    pub(super) holders: Vec<Holder>,
    /// Its counters at the end.
    pub(super) end: Counters,
    /// How many events are its own.
    pub(super) events: u64,
    /// How many requests failed.
    pub(super) ooms: u64,
    /// The fragmentation, 0 to 1, at the ends of equal slices of the time.
    pub(super) fragmentation: Vec<f64>,
}

impl Facts {
    /// What there is to say of a device, with its fragmentation at the ends of `moments` equal slices of the time in `range`.
    pub(super) fn of(
        recording: &Recording,
        device: DeviceId,
        range: &Range<u64>,
        moments: usize,
    ) -> Result<Self, FormatError> {
        let mut replay = Replay::new();
        let mut fragmentation = Vec::with_capacity(moments);
        let span = u128::from(range.end.saturating_sub(range.start));
        for moment in 1..=moments {
            let time_ns = range.start + (span * moment as u128 / moments as u128) as u64;
            let state = replay.seek(recording, recording.event_at_time(time_ns))?;
            fragmentation.push(state.device(device).map_or(0.0, |device| device.free_space().fragmentation()));
        }
        let mut facts = Self {
            device,
            peaks: Default::default(),
            peak_event: 0,
            peak: DeviceState::default(),
            metrics: Metrics::default(),
            holders: Vec::new(),
            end: Counters::default(),
            events: 0,
            ooms: 0,
            fragmentation,
        };
        if let Some(series) = recording.series(device) {
            for (mark, peak) in facts.peaks.iter_mut().zip([series.peak_allocated(), series.peak_reserved()]) {
                let state = replay.seek(recording, peak.event)?;
                *mark = PeakMark { time_ns: state.time_ns(), bytes: peak.bytes };
            }
            facts.peak_event = series.peak_allocated().event;
        }
        if let Some(peak) = replay.seek(recording, facts.peak_event)?.device(device) {
            facts.metrics = Metrics::at(peak, |_, _| true);
            facts.holders = holders(peak);
            facts.peak = peak.clone();
        }
        if let Some(end) = recording.end_state().device(device) {
            (facts.end, facts.events, facts.ooms) = (end.counters(), end.events(), end.ooms());
        }
        Ok(facts)
    }
}
