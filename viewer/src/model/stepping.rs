//! Moves the moment on the screen by single events of the selected device.

use vramscope_trace::{Event, EventKind, FormatError};

use super::state::Model;

/// Maximum number of events, of all devices, that one step over events of the selected device
/// visits. The step then ends at the last event visited.
const MAX_STEPPED_EVENTS: u32 = 1 << 18;

impl Model {
    /// Goes forward by `events` events of the selected device, or back if negative, and pauses
    /// playback. If fewer events are left, goes to the last of them, or stays if there is none.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn step(&mut self, events: i64) -> Result<(), FormatError> {
        self.playback.pause();
        let from = self.target_event();
        let has_others = self.recording.devices().nth(1).is_some();
        let to = if has_others { self.moment_of_device(from, events) } else { from.saturating_add_signed(events) };
        self.seek(to)
    }

    /// Returns the moment `events` events of the selected device after the moment `from` (before it
    /// if negative). If fewer events are left, returns the moment of the last of them, or `from`
    /// without any. If the search comes to a chunk that is not loaded, returns the moment there.
    fn moment_of_device(&mut self, from: u64, events: i64) -> u64 {
        let (first, end) = (self.recording.first_event(), self.recording.end_event());
        let (mut at, mut found, mut left) = (from, from, events.unsigned_abs());
        for _ in 0..MAX_STEPPED_EVENTS {
            if left == 0 || at == if events > 0 { end } else { first } {
                return found;
            }
            at = at.saturating_add_signed(events.signum());
            // The event that leads to the moment; none leads to the first one.
            let Some(index) = at.checked_sub(1).filter(|_| at > first) else { return found };
            let Ok(event) = self.lookup.event(&self.recording, index) else { return at };
            let is_own = |event: Event| event.device == self.device || matches!(event.kind, EventKind::Gap { .. });
            if event.is_some_and(is_own) {
                found = at;
                left -= 1;
            }
        }
        at
    }
}
