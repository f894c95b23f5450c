//! A simulated rank of a training run: it allocates and frees, and its recording goes to a hub.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use vramscope_collector::{DeviceFigures, Figures, Hub, HubLimits};
use vramscope_trace::{
    Block, Category, Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind, PoolKey, PoolKind,
    RecordingInfo, Sink, Site, SiteId, StackId, StreamId, StringId,
};

/// Size of every block, in bytes.
const BLOCK_BYTES: u64 = 2 << 20;
/// The most blocks that are live.
const MAX_LIVE: usize = 64;

/// A simulated rank with one device.
#[derive(Debug)]
pub struct SimulatedRank {
    encoder: Encoder,
    hub: Hub,
    start: Instant,
    live: VecDeque<u64>,
    random: Rng,
    sites: u32,
    next_address: u64,
}

impl SimulatedRank {
    /// Creates a rank that has done nothing. `seed` decides its allocations.
    ///
    /// # Panics
    /// Panics if the system's clock is before 1970.
    #[must_use]
    pub fn new(seed: u64, limits: HubLimits) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
        let device = DeviceInfo { total_bytes: 80 << 30, history_complete: true, ..DeviceInfo::default() };
        let info = RecordingInfo {
            source: "train.py".to_owned(),
            epoch_unix_ns: since_1970.as_nanos() as u64,
            devices: vec![device],
            ..RecordingInfo::default()
        };
        Self {
            encoder: Encoder::new(&info),
            hub: Hub::new(limits),
            start: Instant::now(),
            live: VecDeque::new(),
            random: Rng::with_seed(seed),
            sites: 0,
            next_address: 1 << 40,
        }
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

    /// Returns true if a device of a merged recording shows what this rank has. Numbers of sites
    /// and events, and times, depend on other ranks and are not compared.
    ///
    /// # Panics
    /// Panics if the rank has done nothing yet.
    #[must_use]
    pub fn is_shown_by(&self, merged: &DeviceState) -> bool {
        fn plain_blocks(device: &DeviceState) -> impl Iterator<Item = Block> {
            device.blocks().map(|block| Block { site: SiteId(0), since_event: 0, since_ns: 0, ..*block })
        }
        let expected = self.device();
        merged.counters() == expected.counters() && plain_blocks(merged).eq(plain_blocks(expected))
    }

    /// Makes about this many events and publishes them.
    pub fn run(&mut self, events: u64) {
        let end = self.events() + events;
        if self.sites.is_multiple_of(16) {
            self.define_site();
        }
        while self.events() < end {
            self.step();
        }
        self.publish();
    }

    /// Defines another site.
    fn define_site(&mut self) {
        self.sites += 1;
        self.encoder.define(&Definition::String(format!("step/layer{}", self.sites)));
        let (stack, scope, category) = (StackId(0), StringId(self.sites), Category::Activation);
        self.encoder.define(&Definition::Site(Site { stack, scope, category, compile_context: StringId(0) }));
    }

    /// Allocates a block, or frees one.
    fn step(&mut self) {
        let site = SiteId(self.random.u32(1..=self.sites));
        if self.live.len() == MAX_LIVE || (!self.live.is_empty() && self.random.u8(..3) == 0) {
            let index = self.random.usize(..self.live.len());
            let address = self.live.swap_remove_back(index).expect("the index is of a live block");
            self.event(EventKind::FreeRequested { address, site });
            self.event(EventKind::FreeCompleted { address, site });
        } else {
            let (address, size, requested) = (self.next_address, BLOCK_BYTES, BLOCK_BYTES - 100);
            self.next_address += BLOCK_BYTES;
            let (stream, pool) = (StreamId(0), PoolKey::default_of(PoolKind::Large));
            self.event(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
            self.live.push_back(address);
        }
    }

    fn event(&mut self, kind: EventKind) {
        let time_ns = self.start.elapsed().as_nanos() as u64;
        self.encoder.event(&Event { device: DeviceId(0), time_ns, kind });
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
