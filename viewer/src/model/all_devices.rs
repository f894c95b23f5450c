//! The memory of all devices at the moment on the screen.
//!
//! The page replays only the selected device. Views of other devices call [`Model::all_devices`],
//! which replays all devices at that moment.

use vramscope_trace::{Counters, DeviceId, MemoryState};

use super::state::Model;

/// Maximum number of events and blocks that [`Model::counters_of`] replays within one animation
/// frame. If there are more, they are replayed between frames.
const MAX_REPLAYED: u64 = 50_000;

/// The memory of all devices at a moment, perhaps not computed yet.
#[derive(Clone, Copy)]
pub enum AllDevices<'a> {
    /// The memory is computed.
    Known(&'a MemoryState),
    /// The model computes the memory at the moment on the screen on the first use.
    OnDemand(&'a Model),
}

impl<'a> AllDevices<'a> {
    /// Returns memory that needs no computation: of all devices, or only of the selected one.
    #[must_use]
    pub fn known(self) -> &'a MemoryState {
        match self {
            Self::Known(state) => state,
            Self::OnDemand(model) => model.state(),
        }
    }

    /// Returns the memory of all devices; computes it if necessary.
    #[must_use]
    pub fn memory(self) -> &'a MemoryState {
        match self {
            Self::Known(state) => state,
            Self::OnDemand(model) => model.all_devices(),
        }
    }
}

impl Model {
    /// Returns the memory of all devices at the moment on the screen.
    ///
    /// With several devices, the first call at a moment replays the events of all devices. As long
    /// as chunks for this replay are not loaded, the result is the memory at an earlier moment.
    pub fn all_devices(&self) -> &MemoryState {
        match self.known_devices() {
            Some(state) => state,
            None if self.is_at_end() => self.recording.end_state(),
            None => self.complete_replay.state(&self.recording, self.state().event()),
        }
    }

    /// Returns true if the moment on the screen is the recording's last.
    fn is_at_end(&self) -> bool {
        self.state().event() == self.recording.end_event()
    }

    /// Returns the memory of all devices at the moment on the screen; `None` if it needs a replay.
    fn known_devices(&self) -> Option<&MemoryState> {
        if self.recording.devices().nth(1).is_none() {
            return Some(self.state());
        }
        let at_end = if self.is_at_end() { self.recording.known_end_state() } else { None };
        at_end.or_else(|| self.complete_replay.known_state())
    }

    /// Advances the replay of all devices to the moment on the screen by about `max_events` events.
    /// Returns true if more events are left. At the end of the replay, marks everything that
    /// depends on the moment as changed.
    pub fn work_on_all_devices(&mut self, max_events: u64) -> bool {
        // At the recording's end no replay is necessary: the counters there are known.
        if self.is_at_end() || self.known_devices().is_some() || self.complete_replay.is_missing() {
            return false;
        }
        let is_done = self.complete_replay.step(&self.recording, self.state().event(), max_events);
        self.changes.moment |= is_done;
        !is_done && !self.complete_replay.is_missing()
    }

    /// Returns the byte counters of a device at the moment on the screen.
    ///
    /// For a device other than the selected one they are approximate if exact ones need a long
    /// replay that is not done yet: the device's
    /// [`CounterSeries`](vramscope_trace::CounterSeries) then gives the counters at the end of the
    /// time slice that contains the moment. At the recording's end they are exact.
    pub fn counters_of(&self, device: DeviceId) -> Counters {
        let exact = |state: &MemoryState| state.device(device).map(|memory| memory.counters()).unwrap_or_default();
        if device == self.device {
            return exact(self.state());
        }
        if let Some(state) = self.known_devices() {
            return exact(state);
        }
        let (devices, blocks) = (self.recording.devices().count(), self.device_state().blocks().len());
        let event = self.state().event();
        let replayed = self.recording.replayed_events(event, event) + (devices * blocks) as u64;
        if replayed <= MAX_REPLAYED && !self.is_at_end() {
            return exact(self.all_devices());
        }
        let time_ns = self.state().time_ns();
        let column = self.recording.series(device).and_then(|series| series.columns(time_ns, time_ns, 1).pop());
        column.map(|column| column.last).unwrap_or_default()
    }
}
