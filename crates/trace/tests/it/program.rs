//! A program whose memory behaves like that of real ones: most blocks are freed soon, and new
//! blocks are placed where others were freed.

use std::collections::HashMap;

use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, SiteId, StreamId};

use crate::common::Random;

/// Parameters of the program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramShape {
    pub(crate) devices: u16,
    /// How many of 1,000 steps emit an event that contradicts the state.
    pub(crate) inconsistent_per_1000: u64,
    /// Whether segments are expandable.
    pub(crate) expandable: bool,
    /// Approximate number of live blocks.
    pub(crate) live: usize,
}

const SEGMENT: u64 = 20 << 20;
const BASE: u64 = 0x7f00_0000_0000;
const SIZES: [u64; 8] = [100, 512, 4096, 5000, 65_536, 70_001, 1 << 20, 3 << 20];

struct Device {
    id: DeviceId,
    /// Addresses of free blocks by size.
    free: HashMap<u64, Vec<u64>>,
    /// Address, size, and whether the free was requested.
    live: Vec<(u64, u64, bool)>,
    segments: u64,
    /// Used bytes of the newest segment.
    used: u64,
}

impl Device {
    fn segment(&mut self, shape: &ProgramShape, out: &mut Vec<EventKind>) {
        let address = BASE + self.segments * SEGMENT;
        let (size, stream, pool, site) = (SEGMENT, StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(1));
        out.push(if shape.expandable {
            EventKind::SegmentMapped { address, size, stream, pool, site }
        } else {
            EventKind::SegmentAllocated { address, size, stream, pool, site }
        });
        self.segments += 1;
        self.used = 0;
    }

    fn allocate(&mut self, random: &mut Random, shape: &ProgramShape, out: &mut Vec<EventKind>) {
        let requested = SIZES[random.below(SIZES.len() as u64) as usize] - random.below(2) * random.below(90);
        let size = requested.next_multiple_of(512);
        let address = match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(address) => address,
            None => {
                if self.segments == 0 || self.used + size > SEGMENT {
                    self.segment(shape, out);
                }
                self.used += size;
                BASE + (self.segments - 1) * SEGMENT + self.used - size
            }
        };
        let (stream, pool) = (StreamId(0), PoolKey::default_of(PoolKind::Large));
        let site = SiteId(random.below(9) as u32);
        self.live.push((address, size, false));
        out.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
    }

    fn free(&mut self, random: &mut Random, out: &mut Vec<EventKind>) {
        // Mostly one of the newest blocks.
        let newest = if random.below(8) == 0 { self.live.len() } else { self.live.len().min(6) };
        let at = self.live.len() - 1 - random.below(newest as u64) as usize;
        let (address, size, requested) = self.live[at];
        let site = SiteId(random.below(2) as u32);
        if !requested {
            out.push(EventKind::FreeRequested { address, site });
            if random.below(10) == 0 {
                self.live[at].2 = true;
                return;
            }
        }
        out.push(EventKind::FreeCompleted { address, site });
        self.live.swap_remove(at);
        self.free.entry(size).or_default().push(address);
    }

    /// Emits an event that contradicts the state.
    fn inconsistent_event(&mut self, random: &mut Random, out: &mut Vec<EventKind>) {
        let address = BASE + random.below(4 * SEGMENT);
        let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(2));
        out.push(match random.below(5) {
            0 => EventKind::FreeRequested { address, site },
            1 => EventKind::FreeCompleted { address: self.live.first().map_or(address, |block| block.0), site },
            2 => EventKind::BlockAllocated { address, size: 9000, requested: 10_000, stream, pool, site },
            3 => EventKind::SegmentUnmapped { address, size: random.below(SEGMENT), site },
            _ => EventKind::SegmentFreed { address, size: SEGMENT, site },
        });
    }
}

/// Returns exactly `events` events of the program.
pub(crate) fn program(events: usize, seed: u64, shape: &ProgramShape) -> Vec<Event> {
    let mut random = Random(seed | 1);
    let device = |id| Device { id: DeviceId(id), free: HashMap::new(), live: Vec::new(), segments: 0, used: 0 };
    let mut devices: Vec<Device> = (0..shape.devices).map(device).collect();
    let (mut out, mut kinds) = (Vec::new(), Vec::new());
    let mut time_ns = 0;
    while out.len() < events {
        let device = &mut devices[random.below(u64::from(shape.devices)) as usize];
        if random.below(1000) < shape.inconsistent_per_1000 {
            device.inconsistent_event(&mut random, &mut kinds);
        } else if device.live.is_empty() || random.below(2 * shape.live as u64) >= device.live.len() as u64 {
            device.allocate(&mut random, shape, &mut kinds);
        } else {
            device.free(&mut random, &mut kinds);
        }
        for kind in kinds.drain(..) {
            out.push(Event { device: device.id, time_ns, kind });
            time_ns += random.below(3) * 1000;
        }
    }
    out.truncate(events);
    out
}
