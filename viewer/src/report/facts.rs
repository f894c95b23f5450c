//! What a report says of a device, worked out before anything is drawn.

use std::ops::Range;

use vramscope_trace::{Counters, DeviceId, DeviceState, FormatError, Holder, Recording, Replay, holders};

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
    /// Free bytes at that moment in segments that hold a block as well.
    pub(super) inactive_split_bytes: u64,
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
        let columns = recording.columns(device, range.start, range.end, moments);
        let mut fragmentation = Vec::with_capacity(columns.len());
        for column in &columns {
            let state = replay.seek(recording, column.event)?;
            fragmentation.push(state.device(device).map_or(0.0, |device| device.free_space().fragmentation()));
        }
        let mut facts = Self {
            device,
            peaks: Default::default(),
            peak_event: 0,
            peak: DeviceState::default(),
            inactive_split_bytes: 0,
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
            facts.inactive_split_bytes = inactive_split_bytes(peak);
            facts.holders = holders(peak);
            facts.peak = peak.clone();
        }
        if let Some(end) = recording.end_state().device(device) {
            (facts.end, facts.events, facts.ooms) = (end.counters(), end.events(), end.ooms());
        }
        Ok(facts)
    }

    /// Bytes of live blocks at the peak that nobody asked for.
    pub(super) fn rounding_bytes(&self) -> u64 {
        let counters = self.peak.counters();
        counters.active.saturating_sub(counters.requested)
    }
}

/// Free bytes that the allocator cannot give back to the driver, because a block in the same segment is live.
fn inactive_split_bytes(device: &DeviceState) -> u64 {
    let in_segment = |segment| {
        let (mut free, mut live) = (0u64, false);
        for extent in device.extents(segment) {
            match extent.block {
                Some(_) => live = true,
                None => free = free.saturating_add(extent.size),
            }
        }
        if live { free } else { 0 }
    };
    device.segments().map(in_segment).fold(0, u64::saturating_add)
}
