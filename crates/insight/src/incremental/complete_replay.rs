//! A replay of all devices, for a caller whose own replay has one device.

use std::cell::{Cell, OnceCell};

use vramscope_trace::{MemoryState, Recording, Replay};

/// A replay of all devices up to a moment, made on demand.
#[derive(Default)]
pub struct CompleteReplay {
    /// The finished replay; empty until the memory of all devices is needed.
    current: OnceCell<Replay>,
    /// A replay at another moment, from which the next one continues if it can.
    previous: Cell<Option<Replay>>,
    /// Whether the last replay stopped early, because chunks are not loaded.
    is_missing: Cell<bool>,
}

impl CompleteReplay {
    /// Forgets the result, because the caller goes to another moment, and keeps the replay to
    /// continue from.
    pub fn restart(&mut self) {
        self.is_missing.set(false);
        if let Some(replay) = self.current.take() {
            self.previous.set(Some(replay));
        }
    }

    /// Allows another try after chunks were loaded. Returns true if the last replay lacked chunks.
    pub fn retry(&mut self) -> bool {
        let was_missing = self.is_missing.get();
        if was_missing {
            self.restart();
        }
        was_missing
    }

    /// Returns true if the last replay stopped early, because chunks are not loaded.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.is_missing.get()
    }

    /// Returns the memory of all devices if the replay is finished and complete.
    #[must_use]
    pub fn known_state(&self) -> Option<&MemoryState> {
        self.current.get().filter(|_| !self.is_missing.get()).map(Replay::state)
    }

    /// Returns the memory of all devices at the moment `event` (an event number), or at an earlier
    /// one while chunks are missing. Replays all events on the first call.
    #[must_use]
    pub fn state(&self, recording: &Recording, event: u64) -> &MemoryState {
        self.current.get_or_init(|| self.advance(recording, event, u64::MAX).0).state()
    }

    /// Advances the replay towards the moment `event` by at most `max_events` events. Returns true
    /// once the moment is reached.
    pub fn step(&self, recording: &Recording, event: u64, max_events: u64) -> bool {
        let (replay, is_done) = self.advance(recording, event, max_events);
        if is_done {
            self.current.get_or_init(|| replay);
        } else {
            self.previous.set(Some(replay));
        }
        is_done
    }

    /// Advances the replay in `previous`, or a new one, towards the moment `event` by at most
    /// `max_events` events. Returns the replay, and true if it has reached the moment.
    fn advance(&self, recording: &Recording, event: u64, max_events: u64) -> (Replay, bool) {
        let mut replay = self.previous.take().unwrap_or_default();
        let base = event - recording.replayed_events(event, event);
        let at = replay.state().event();
        let start = if (base..=event).contains(&at) { at } else { base };
        let target = start.saturating_add(max_events).min(event);
        let is_missing = replay.seek(recording, target).is_err();
        self.is_missing.set(is_missing);
        (replay, target == event && !is_missing)
    }
}
