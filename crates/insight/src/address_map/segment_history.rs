//! The segment spans of all devices of a recording, built in steps.

use std::collections::BTreeMap;
use std::ops::Range;

use vramscope_trace::{DeviceId, FormatError, Recording, Replay};

use super::segment_spans::SegmentSpans;

/// The reserved memory of all devices of a recording over time, up to a moment.
///
/// [`step`](Self::step) adds further events, also while the recording grows. Reading an event takes
/// about 60 ns.
#[derive(Clone, Debug, Default)]
pub struct SegmentHistory {
    devices: BTreeMap<DeviceId, SegmentSpans>,
    replay: Replay,
    /// The moment up to which the spans are complete; `None` before the first step.
    moment: Option<u64>,
    /// The last moment whose full state was added.
    state_added_at: Option<u64>,
    /// The spans of a device without segments, for [`device`](Self::device) to return.
    empty: SegmentSpans,
}

impl SegmentHistory {
    /// Creates a history without events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the spans of a device's segments; none if nothing has happened on it.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> &SegmentSpans {
        self.devices.get(&id).unwrap_or(&self.empty)
    }

    /// Returns the moment up to which the spans are complete.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.moment.unwrap_or(0)
    }

    /// Adds up to `max_events` further events of `recording`, and returns true if there are no more
    /// now. A recording whose next events were dropped begins again.
    ///
    /// # Errors
    /// If a chunk cannot be read: load the byte ranges that [`missing`](Self::missing) returns
    /// first.
    pub fn step(&mut self, recording: &Recording, max_events: u64) -> Result<bool, FormatError> {
        let known = recording.first_event()..=recording.end_event();
        let mut moment = match self.moment.filter(|moment| known.contains(moment)) {
            Some(moment) => moment,
            None => {
                *self = Self::default();
                self.add_state(recording, recording.first_event())?
            }
        };
        let mut left = max_events.max(1);
        while let Some(next) = recording.next_event(moment) {
            if left == 0 {
                return Ok(false);
            }
            left -= 1;
            if next != moment || self.is_state_due(recording, next) {
                self.add_state(recording, next)?;
            }
            if let Some(event) = self.replay.event(recording, next)? {
                self.devices.entry(event.device).or_default().event(next.saturating_add(1), &event);
            }
            moment = next.saturating_add(1);
            self.moment = Some(moment);
        }
        let end = recording.end_event();
        if moment < end || self.is_state_due(recording, end) {
            self.add_state(recording, end)?;
        }
        Ok(true)
    }

    /// Returns true if the recording has a full state at `moment` that contradicts the events
    /// before it and has not been added.
    fn is_state_due(&self, recording: &Recording, moment: u64) -> bool {
        self.state_added_at != Some(moment) && recording.has_correction_at(moment)
    }

    /// Applies the recording's memory state at `moment`, and returns `moment`.
    fn add_state(&mut self, recording: &Recording, moment: u64) -> Result<u64, FormatError> {
        let state = self.replay.seek(recording, moment)?;
        for (&id, spans) in &mut self.devices {
            if state.device(id).is_none() {
                spans.release_all(moment);
            }
        }
        for (id, device) in state.devices() {
            self.devices.entry(id).or_default().apply_full_state(moment, device);
        }
        (self.moment, self.state_added_at) = (Some(moment), Some(moment));
        Ok(moment)
    }

    /// Returns the byte ranges of the recording's file to load before a step of `max_events`; empty
    /// if the step can be made.
    #[must_use]
    pub fn missing(&self, recording: &Recording, max_events: u64) -> Vec<Range<u64>> {
        let from = self.moment.unwrap_or(recording.first_event());
        recording.missing_between(from, from.saturating_add(max_events).min(recording.end_event()))
    }

    /// Returns the memory that the spans occupy, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.devices.values().map(SegmentSpans::memory_bytes).sum()
    }
}
