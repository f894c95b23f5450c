//! A program to be watched.

use std::collections::VecDeque;

use vramscope_trace::{Definition, DeviceId, Encoder, Event, EventKind, Info, Pool, PoolKind, Sink, SiteId, StreamId};

use super::*;

const BLOCK: u64 = 512;

/// A number that has nothing to do with those for other seeds.
fn random(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A program that allocates and frees, and defines a name now and then.
pub(crate) struct Source {
    pub(crate) encoder: Encoder,
    pub(crate) hub: Hub,
    live: VecDeque<u64>,
    count: u64,
    pub(crate) names: usize,
}

impl Source {
    pub(crate) fn new(limits: HubLimits) -> Self {
        Self {
            encoder: Encoder::new(&Info::default()),
            hub: Hub::new(limits),
            live: VecDeque::new(),
            count: 0,
            names: 0,
        }
    }

    fn event(&mut self, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.count * 1000, kind });
        self.count += 1;
    }

    pub(crate) fn run(&mut self, events: u64) {
        for n in 0..events {
            if n % 1000 == 0 {
                self.encoder.define(&Definition::String(format!("name {}", self.count)));
                self.names += 1;
            }
            if self.live.len() > 20
                && let Some(address) = self.live.pop_front()
            {
                self.event(EventKind::FreeRequested { address, site: SiteId(0) });
                self.event(EventKind::FreeCompleted { address, site: SiteId(0) });
            }
            let address = (random(self.count) >> 20) * BLOCK;
            let pool = Pool::default_of(PoolKind::Small);
            let (stream, site) = (StreamId(0), SiteId(0));
            self.event(EventKind::BlockAllocated { address, size: BLOCK, requested: 1, stream, pool, site });
            self.live.push_back(address);
        }
        self.publish();
    }

    /// Events of 24 bytes and more each, however they are packed.
    pub(crate) fn run_incompressible(&mut self, events: u64) {
        for n in 0..events {
            let [used_by_context, used_by_others, free] = [1, 2, 3].map(|part| random(self.count * 3 + part + n));
            self.event(EventKind::MemorySample { used_by_context, used_by_others, free });
        }
        self.publish();
    }

    fn publish(&mut self) {
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
    }
}
