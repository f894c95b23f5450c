//! A simulated rank of a training run: it repeats a recorded training, and its recording goes to a
//! hub.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use vramscope_collector::{DeviceFigures, Figures, Hub, HubLimits};
use vramscope_trace::{DeviceId, DeviceInfo, DeviceState, Encoder, Event, RecordingInfo, Sink};

use crate::recorded_events::RecordedEvents;

/// A simulated rank with one device.
#[derive(Debug)]
pub struct SimulatedRank {
    encoder: Encoder,
    hub: Hub,
    start: Instant,
    recorded: Arc<RecordedEvents>,
    /// The index of the next recorded event.
    next: usize,
}

impl SimulatedRank {
    /// Creates a rank that has done the first `shift` events of a recorded training. It repeats
    /// the training when it has done all.
    ///
    /// # Panics
    /// Panics if the system's clock is before 1970, or the recording is missing.
    #[must_use]
    pub fn new(shift: u64, limits: HubLimits) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
        let device = DeviceInfo { total_bytes: 80 << 30, history_complete: true, ..DeviceInfo::default() };
        let info = RecordingInfo {
            source: "train.py".to_owned(),
            epoch_unix_ns: since_1970.as_nanos() as u64,
            devices: vec![device],
            ..RecordingInfo::default()
        };
        let recorded = RecordedEvents::of_training();
        let mut encoder = Encoder::new(&info);
        recorded.definitions.iter().for_each(|definition| encoder.define(definition));
        let mut rank = Self { encoder, hub: Hub::new(limits), start: Instant::now(), recorded, next: 0 };
        rank.run(shift);
        rank
    }

    /// Returns the hub with the rank's recording.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Returns the state of the rank's device.
    ///
    /// # Panics
    /// Panics if the rank has done nothing yet.
    #[must_use]
    pub fn device(&self) -> &DeviceState {
        self.encoder.state().device(DeviceId(0)).expect("the device has had events")
    }

    /// Returns the number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.encoder.state().event()
    }

    /// Makes this many events and publishes them.
    pub fn run(&mut self, events: u64) {
        let end = self.events() + events;
        while self.events() < end {
            let kind = self.recorded.events[self.next];
            self.next = (self.next + 1) % self.recorded.events.len();
            let time_ns = self.start.elapsed().as_nanos() as u64;
            self.encoder.event(&Event { device: DeviceId(0), time_ns, kind });
        }
        self.publish();
    }

    /// Passes the events so far to the hub.
    fn publish(&mut self) {
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
        let state = self.encoder.state();
        let devices = state.devices().map(|(device, state)| {
            DeviceFigures::of(DeviceInfo { device: device.0, ..DeviceInfo::default() }, state).with_largest_sites(state)
        });
        let devices = devices.collect();
        self.hub.set_figures(Figures { events: state.event(), devices, ..Figures::default() });
    }
}
