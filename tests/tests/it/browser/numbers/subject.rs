//! A recording as `trace` and `insight` see it, and the snapshot that it was made from.

use fastrand::Rng;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_tests::fixtures::Fixture;
use vramscope_trace::{Counters, DeviceId, DeviceLifetimes, DeviceState, Encoder, Event, EventKind, Recording, Replay};

/// A recording and its snapshot.
pub(super) struct Subject {
    /// Name of the file.
    pub(super) name: String,
    /// The snapshot, a pickle that is not compressed.
    pub(super) pickle: Vec<u8>,
    /// The recording.
    pub(super) recording: Recording,
    /// The lifetimes of all allocations.
    pub(super) history: History,
}

impl Subject {
    /// Reads a recording.
    pub(super) fn new(fixture: &Fixture) -> Self {
        let (file, limits, name) = (fixture.bytes(), Limits::default(), fixture.file_name());
        let pickle = unpack(&file, &limits).expect("the snapshot can be decompressed").into_owned();
        let (mut encoder, _) =
            import(&pickle, &name, &limits, &mut ignore_progress, Encoder::new).expect("it can be imported");
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
        }
        let history = History::of(&recording).expect("the recording is complete");
        Self { name, pickle, recording, history }
    }

    /// Returns the devices of which anything was recorded.
    pub(super) fn devices(&self) -> Vec<DeviceId> {
        let has_events = |device: &DeviceId| self.history.lifetimes(*device).is_some_and(|one| !one.is_empty());
        self.recording.devices().filter(has_events).collect()
    }

    /// Returns the lifetimes of a device.
    pub(super) fn lifetimes(&self, device: DeviceId) -> &DeviceLifetimes {
        self.history.lifetimes(device).expect("the device has events")
    }

    /// Returns the memory of a device at a moment.
    pub(super) fn state(&self, device: DeviceId, moment: u64) -> DeviceState {
        let mut replay = Replay::new();
        let state = replay.seek(&self.recording, moment).expect("the moment is in the recording");
        state.device(device).cloned().unwrap_or_default()
    }

    /// Returns the memory of a device at moments, which must not decrease.
    pub(super) fn states(&self, device: DeviceId, moments: &[u64]) -> Vec<DeviceState> {
        let mut replay = Replay::new();
        let mut state = |moment: &u64| {
            let state = replay.seek(&self.recording, *moment).expect("the moment is in the recording");
            state.device(device).cloned().unwrap_or_default()
        };
        moments.iter().map(&mut state).collect()
    }

    /// Returns the counters of a device and the time at every moment, the first moment first.
    pub(super) fn all_moments(&self, device: DeviceId) -> (Vec<Counters>, Vec<u64>) {
        let mut replay = Replay::new();
        let mut moment = |moment| {
            let state = replay.seek(&self.recording, moment).expect("the moment is in the recording");
            (state.device(device).map(DeviceState::counters).unwrap_or_default(), state.time_ns())
        };
        (0..=self.recording.end_event()).map(&mut moment).unzip()
    }

    /// Returns the events after the moment `from` and up to the moment `to`.
    pub(super) fn events(&self, from: u64, to: u64) -> Vec<Event> {
        let mut replay = Replay::new();
        let event = |index| replay.event(&self.recording, index).expect("the recording is complete");
        (from..to).filter_map(event).collect()
    }

    /// Returns the out-of-memory errors with their event numbers.
    pub(super) fn failures(&self) -> Vec<(u64, Event)> {
        let (first, end) = (self.recording.first_event(), self.recording.end_event());
        let events = (first + 1..).zip(self.events(first, end));
        events.filter(|(_, event)| matches!(event.kind, EventKind::OutOfMemory { .. })).collect()
    }

    /// Returns an address within a random allocation of a device.
    pub(super) fn random_address(&self, device: DeviceId, random: &mut Rng) -> Option<u64> {
        let lifetimes = self.lifetimes(device);
        let one = lifetimes.iter().nth(random.usize(..lifetimes.len()))?;
        Some(one.address + random.u64(..one.size.max(1)))
    }

    /// Returns a grouping that knows all sites, and the categories of a device's blocks.
    pub(super) fn grouping(&self, by: GroupBy, device: DeviceId) -> Grouping {
        Grouping::of(by, &self.recording).with_categories(&self.history.categories(device))
    }
}
