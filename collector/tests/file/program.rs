//! A program to be recorded: it asks for memory and gives it back, always in the same way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, Sink, SiteId, StreamId};

/// Blocks that are live at once.
const LIVE: usize = 512;
/// Of a block's life: asked for, given back, free.
const EVENTS_A_BLOCK: u64 = 3;
/// Between two pauses.
const BEAT: Duration = Duration::from_millis(1);

/// A number that has nothing to do with those for other seeds.
fn random(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A program and what it has.
pub(crate) struct Program<S, C> {
    pub(crate) sink: S,
    now_ns: C,
    live: VecDeque<u64>,
    /// Addresses that are free, so that they come again as an allocator's do.
    free: Vec<u64>,
    blocks: u64,
    events: u64,
}

impl<S: Sink, C: Fn() -> u64> Program<S, C> {
    pub(crate) fn new(sink: S, now_ns: C) -> Self {
        let free = (0..2 * LIVE as u64).rev().map(|place| 0x7f00_0000_0000 + place * (64 << 10)).collect();
        Self { sink, now_ns, live: VecDeque::new(), free, blocks: 0, events: 0 }
    }

    fn event(&mut self, kind: EventKind) {
        self.events += 1;
        self.sink.event(&Event { device: DeviceId(0), time_ns: (self.now_ns)(), kind });
    }

    /// One block more, and once there are many one of them less.
    pub(crate) fn block(&mut self) {
        let seed = random(self.blocks);
        self.blocks += 1;
        let requested = 1 + seed % (64 << 10);
        let (size, site) = (requested.next_multiple_of(512), SiteId(0));
        let address = self.free.pop().expect("there are more than are ever live");
        let (stream, pool) = (StreamId(0), PoolKey::default_of(PoolKind::Small));
        self.event(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        self.live.push_back(address);
        if self.live.len() > LIVE {
            let place = (seed >> 32) as usize % LIVE;
            let address = self.live.swap_remove_front(place).expect("so many are live");
            self.event(EventKind::FreeRequested { address, site });
            self.event(EventKind::FreeCompleted { address, site });
            self.free.push(address);
        }
    }

    /// Goes on at about `rate` events a second, for that long. At every beat `tell` is given the time and how many
    /// events there were before.
    pub(crate) fn run(&mut self, rate: u64, time: Duration, mut tell: impl FnMut(u64, u64)) {
        let (since, begun) = (Instant::now(), self.blocks);
        while since.elapsed() < time {
            let due = since.elapsed().as_nanos() as u64 * rate / EVENTS_A_BLOCK / 1_000_000_000;
            while self.blocks - begun < due {
                self.block();
            }
            tell((self.now_ns)(), self.events);
            std::thread::sleep(BEAT);
        }
    }
}
