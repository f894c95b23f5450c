//! Walks through the events of a recording with the memory state after each.

use vramscope_trace::{DeviceId, Event, FormatError, MemoryState, Recording, Replay};

/// A position in a recording that moves on event by event, with the memory state of all devices or
/// of one.
///
/// [`Replay::seek`] by one event decodes the events of its chunk again, so visiting every event
/// that way is slow.
#[derive(Clone, Debug)]
pub(crate) struct EventWalk {
    replay: Replay,
    state: MemoryState,
    /// No full state replaces the state before this moment.
    no_correction_before: u64,
}

/// The events that one call of [`EventWalk::next`] passed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WalkStep {
    /// One event, which was applied to the state.
    Event(Event),
    /// The state was replaced by a recorded full state: after missing events, or because it differs
    /// from the state after the events before it.
    Replaced,
}

impl EventWalk {
    /// Creates a walk that begins at a moment.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`Replay::seek`].
    pub(crate) fn new(recording: &Recording, moment: u64) -> Result<Self, FormatError> {
        Self::begin(Replay::new(), recording, moment)
    }

    /// Creates a walk that begins at a moment and has only the memory of `device` in its state.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`Replay::seek`].
    pub(crate) fn of_device(recording: &Recording, device: DeviceId, moment: u64) -> Result<Self, FormatError> {
        Self::begin(Replay::of_device(device), recording, moment)
    }

    /// Creates a walk that begins at a moment.
    fn begin(mut replay: Replay, recording: &Recording, moment: u64) -> Result<Self, FormatError> {
        let state = replay.seek(recording, moment)?.clone();
        Ok(Self { replay, state, no_correction_before: 0 })
    }

    /// Returns the memory state at the walk's moment.
    pub(crate) fn state(&self) -> &MemoryState {
        &self.state
    }

    /// Moves to the next moment and returns the passed events; `None` at the end of the recording.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`Replay::seek`].
    pub(crate) fn next(&mut self, recording: &Recording) -> Result<Option<WalkStep>, FormatError> {
        let index = self.state.event();
        if index >= recording.end_event() {
            return Ok(None);
        }
        if let Some(event) = self.replay.event(recording, index)? {
            if self.replay.device().is_none_or(|only| only == event.device) {
                self.state.apply(&event);
            } else {
                self.state.pass(&event);
            }
            let moment = self.state.event();
            if moment >= self.no_correction_before {
                if recording.has_correction_at(moment) {
                    self.replace(recording, moment)?;
                    return Ok(Some(WalkStep::Replaced));
                }
                self.no_correction_before = recording.next_full_state(moment + 1);
            }
            return Ok(Some(WalkStep::Event(event)));
        }
        let next = recording.next_event(index).unwrap_or(recording.end_event()).max(index + 1);
        self.replace(recording, next)?;
        // A recording that ends in a gap has no state after it.
        Ok((self.state.event() > index).then_some(WalkStep::Replaced))
    }

    /// Replaces the state by the recorded one at a moment.
    fn replace(&mut self, recording: &Recording, moment: u64) -> Result<(), FormatError> {
        self.state = self.replay.seek(recording, moment)?.clone();
        Ok(())
    }
}
