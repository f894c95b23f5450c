//! A deterministic program to record: a repeatable sequence of allocations and frees.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fastrand::Rng;
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, Sink, SiteId, StreamId};

/// Blocks that are live at a time.
const LIVE: usize = 512;
/// Events of a block's lifetime: allocated, free requested, free completed.
const EVENTS_PER_BLOCK: u64 = 3;
/// Interval between bursts of events.
const BURST_INTERVAL: Duration = Duration::from_millis(1);

/// A program with its live blocks and free addresses.
pub(crate) struct Program<S, C> {
    pub(crate) sink: S,
    now_ns: C,
    random: Rng,
    live: VecDeque<u64>,
    /// Free addresses, reused last in, first out, as an allocator reuses them.
    free: Vec<u64>,
    blocks: u64,
    events: u64,
}

impl<S: Sink, C: Fn() -> u64> Program<S, C> {
    pub(crate) fn new(sink: S, now_ns: C) -> Self {
        let free = (0..2 * LIVE as u64).rev().map(|index| 0x7f00_0000_0000 + index * (64 << 10)).collect();
        Self { sink, now_ns, random: Rng::with_seed(1), live: VecDeque::new(), free, blocks: 0, events: 0 }
    }

    fn event(&mut self, kind: EventKind) {
        self.events += 1;
        self.sink.event(&Event { device: DeviceId(0), time_ns: (self.now_ns)(), kind });
    }

    /// Allocates a block, and frees one if more than [`LIVE`] are live.
    pub(crate) fn block(&mut self) {
        self.blocks += 1;
        let requested = 1 + self.random.u64(..64 << 10);
        let (size, site) = (requested.next_multiple_of(512), SiteId(0));
        let address = self.free.pop().expect("there are more addresses than live blocks");
        let (stream, pool) = (StreamId(0), PoolKey::default_of(PoolKind::Small));
        self.event(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        self.live.push_back(address);
        if self.live.len() > LIVE {
            let index = self.random.usize(..LIVE);
            let address = self.live.swap_remove_front(index).expect("more than LIVE blocks are live");
            self.event(EventKind::FreeRequested { address, site });
            self.event(EventKind::FreeCompleted { address, site });
            self.free.push(address);
        }
    }

    /// Makes `rate` events for each second of `time`, at about this rate; a busy machine takes
    /// longer. After each burst, calls `report` with the time and the number of events so far.
    pub(crate) fn run(&mut self, rate: u64, time: Duration, mut report: impl FnMut(u64, u64)) {
        let (start, start_blocks) = (Instant::now(), self.blocks);
        let blocks_in = |time: Duration| time.as_nanos() as u64 * rate / EVENTS_PER_BLOCK / 1_000_000_000;
        while self.blocks - start_blocks < blocks_in(time) {
            let due = blocks_in(start.elapsed().min(time));
            while self.blocks - start_blocks < due {
                self.block();
            }
            report((self.now_ns)(), self.events);
            std::thread::sleep(BURST_INTERVAL);
        }
    }
}
