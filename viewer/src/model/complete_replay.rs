//! A replay of all devices at the moment on the screen, which is itself replayed for one device.

use std::cell::{Cell, OnceCell};

use vramscope_trace::{MemoryState, Recording, Replay};

/// A replay of all devices at the moment on the screen, once it was needed.
#[derive(Default)]
pub(super) struct CompleteReplay {
    current: OnceCell<Replay>,
    /// A replay at another moment, to start from.
    previous: Cell<Option<Replay>>,
    /// Whether chunks that it needs are not loaded.
    is_missing: Cell<bool>,
}

impl CompleteReplay {
    /// Keeps the replay to start from, because the page goes to another moment.
    pub(super) fn restart(&mut self) {
        self.is_missing.set(false);
        if let Some(replay) = self.current.take() {
            self.previous.set(Some(replay));
        }
    }

    /// Tries again if chunks were missing, because some were loaded. Returns true if so.
    pub(super) fn retry(&mut self) -> bool {
        let was_missing = self.is_missing.get();
        if was_missing {
            self.restart();
        }
        was_missing
    }

    /// Returns true if chunks that the replay needs are not loaded.
    pub(super) fn is_missing(&self) -> bool {
        self.is_missing.get()
    }

    /// Returns the memory of all devices if it is known.
    pub(super) fn known_state(&self) -> Option<&MemoryState> {
        self.current.get().filter(|_| !self.is_missing.get()).map(Replay::state)
    }

    /// Returns the memory of all devices at the moment `event`, or at an earlier one while chunks
    /// are missing.
    pub(super) fn state(&self, recording: &Recording, event: u64) -> &MemoryState {
        self.current.get_or_init(|| self.advance(recording, event, u64::MAX).0).state()
    }

    /// Goes on to the moment `event` by at most `max_events` events. Returns true once it is
    /// reached.
    pub(super) fn step(&self, recording: &Recording, event: u64, max_events: u64) -> bool {
        let (replay, is_done) = self.advance(recording, event, max_events);
        if is_done {
            self.current.get_or_init(|| replay);
        } else {
            self.previous.set(Some(replay));
        }
        is_done
    }

    /// Takes the replay to start from and moves it towards the moment `event` by at most
    /// `max_events` events. The second value is true if it is there.
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
