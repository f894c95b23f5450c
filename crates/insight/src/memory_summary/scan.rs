//! Computes the memory summary of a moment in steps.

use vramscope_trace::{DeviceId, DeviceState, FormatError, Recording};

use super::summary::MemorySummary;
use super::totals::{Totals, current_stats, have_same_current};
use crate::failures::RetryTracker;
use crate::placement::recorded_settings;
use crate::pools::event_walk::{EventWalk, WalkStep};

/// The computation of a device's [`MemorySummary`] at a moment, in steps.
///
/// Visits every event up to the moment, 0.5 microseconds each. Without a complete history it visits
/// none.
#[derive(Clone, Debug)]
pub struct MemorySummaryScan {
    device: DeviceId,
    moment: u64,
    walk: EventWalk,
    /// `None` if the history is incomplete.
    totals: Option<Totals>,
    retries: RetryTracker,
    max_split_bytes: Option<u64>,
}

impl MemorySummaryScan {
    /// Begins the summary of `device` at a moment.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(recording: &Recording, device: DeviceId, moment: u64) -> Result<Self, FormatError> {
        let moment = moment.clamp(recording.first_event(), recording.end_event());
        let max_split_bytes = recorded_settings(recording.info()).max_split_size_bytes;
        let walk = EventWalk::of_device(recording, device, recording.first_event())?;
        let start = walk.state().device(device);
        let is_empty = start.is_none_or(|start| start.segments().len() == 0 && start.blocks().len() == 0);
        let info = recording.info().device(device);
        let is_complete = recording.first_event() == 0 && is_empty && info.is_some_and(|info| info.history_complete);
        let mut scan = Self {
            device,
            moment,
            walk,
            totals: is_complete.then(|| Totals::new(max_split_bytes)),
            retries: RetryTracker::new(recording, device),
            max_split_bytes,
        };
        scan.skip_if_incomplete(recording)?;
        Ok(scan)
    }

    /// Moves to the moment at once if there are no totals to compute.
    fn skip_if_incomplete(&mut self, recording: &Recording) -> Result<(), FormatError> {
        if self.totals.is_none() && self.walk.state().event() < self.moment {
            self.walk = EventWalk::of_device(recording, self.device, self.moment)?;
        }
        Ok(())
    }

    /// Visits up to `max_events` more events. Returns true once the moment is reached.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn step(&mut self, recording: &Recording, max_events: u64) -> Result<bool, FormatError> {
        for _ in 0..max_events {
            if self.walk.state().event() >= self.moment {
                return Ok(true);
            }
            match self.walk.next(recording)? {
                Some(WalkStep::Event(event)) if event.device == self.device => {
                    let state = self.walk.state();
                    let retry =
                        state.device(self.device).and_then(|after| self.retries.event(state.event(), &event, after));
                    if let Some(totals) = &mut self.totals {
                        totals.stats.num_alloc_retries += u64::from(retry.is_some());
                        if totals.event(&event.kind).is_none() {
                            self.totals = None;
                        }
                    }
                }
                Some(WalkStep::Event(_)) => {}
                Some(WalkStep::Replaced) => self.totals = None,
                None => return Ok(true),
            }
            self.skip_if_incomplete(recording)?;
        }
        Ok(self.walk.state().event() >= self.moment)
    }

    /// Moves the summary's moment forward, so that further steps continue from the present one.
    /// Returns false, changing nothing, if `moment` is before the one reached: create another scan.
    pub fn continue_to(&mut self, recording: &Recording, moment: u64) -> bool {
        let is_later = moment >= self.walk.state().event();
        if is_later {
            self.moment = moment.min(recording.end_event());
            self.retries.update_peak(recording, self.device);
        }
        is_later
    }

    /// Returns the moment up to which events have been visited.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.walk.state().event()
    }

    /// Returns the summary at the moment reached.
    ///
    /// If the sums contradict the memory state, the history is treated as incomplete.
    #[must_use]
    pub fn summary(&self) -> MemorySummary {
        let state = self.walk.state();
        let empty = DeviceState::default();
        let current = current_stats(state.device(self.device).unwrap_or(&empty), self.max_split_bytes);
        let totals = self.totals.as_ref().filter(|totals| have_same_current(&totals.stats, &current));
        let stats = totals.map_or(current, |totals| totals.stats);
        let retries = self.retries.is_certain().then_some(stats.num_alloc_retries);
        MemorySummary::new(self.device, state.event(), totals.is_some(), retries, stats)
    }
}
