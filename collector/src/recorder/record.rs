//! Events as they wait in a ring: records of one to eight words.
//!
//! An [`Event`] is as large as its largest kind, 96 bytes, and what a program pays for recording is for the most part the lines of the
//! cache that it writes. A block's life is three events, which take 48 bytes, three quarters of a line:
//!
//! ```text
//! head | address | size in units of 512 bytes (32 bits), bytes not asked for (32)      a block is allocated
//! head | address                                                                       the program frees it
//! head                                                                                 its free is complete, at the same time
//!
//! head:  kind (4 bits) | time since that of the setting (28) | site (32)
//! ```
//!
//! These go by a *setting*, which is a record itself and stands before them wherever it changes, or the time has moved on too far:
//!
//! ```text
//! kind (4 bits) | time in ticks? (1) | 0 (3) | device (16) | 0 (40); time | stream | owner of the pool (2 words)
//! ```
//!
//! Everything else, and what does not fit, is a record of four words or eight:
//!
//! ```text
//! head | time | address | size                      a free needs no more than this
//! requested | stream | owner of the pool (2 words)  where the head says that there are eight
//!
//! head:  kind (4 bits) | variant (3) | eight words? (1) | device (16) | time in ticks? (1) | 0 (7) | site or name (32)
//! ```

use vramscope_trace::{DeviceId, Event, EventKind, MempoolId, PoolKey, PoolKind, SiteId, AnnotationStage, StreamId, StringId};

/// Where records are put.
pub(super) trait Put {
    /// Puts a whole record; says whether it was taken.
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool;
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Where its time is in ticks of the clock, they stand in the place of nanoseconds.
    Event(Event, Unit),
    /// Here stands the next of what the ring's handle keeps beside it.
    Aside,
}

/// What the time of an event is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    #[default]
    Nanoseconds,
    /// Of the recording's own clock.
    Ticks,
}

const SEGMENT_ALLOCATED: u64 = 0;
const SEGMENT_FREED: u64 = 1;
const SEGMENT_MAPPED: u64 = 2;
const SEGMENT_UNMAPPED: u64 = 3;
const BLOCK_ALLOCATED: u64 = 4;
const FREE_REQUESTED: u64 = 5;
const FREE_COMPLETED: u64 = 6;
const OUT_OF_MEMORY: u64 = 7;
const MEMORY_SAMPLE: u64 = 8;
const MARK: u64 = 9;
const GAP: u64 = 10;
const ASIDE: u64 = 11;
/// By the setting: a block of a pool of small blocks, one of a pool of large blocks, and a free.
const SMALL_BLOCK: u64 = 12;
const LARGE_BLOCK: u64 = 13;
const FREE: u64 = 14;
/// One of [`COMPLETED_TOO`] and a setting.
const OTHER: u64 = 15;

const KIND_MASK: u64 = 0xf;
const VARIANT_SHIFT: u32 = 4;
const VARIANT_MASK: u64 = 0x7;
const EIGHT: u64 = 1 << 7;
const DEVICE_SHIFT: u32 = 8;
const TICKS: u64 = 1 << 24;
const ID_SHIFT: u32 = 32;

const SINCE_SHIFT: u32 = 4;
/// Time since that of the setting is less than this: 128 ms of a counter that runs at 2.1 GHz.
const SINCE_END: u64 = 1 << 28;
/// Blocks have sizes in units of this.
const SIZE_UNIT: u64 = 512;
/// A size in its units, and what of it was not asked for, are less than this.
const SIZE_END: u64 = 1 << 32;

/// The free in the record before is complete.
const COMPLETED_TOO: u64 = OTHER | 1 << VARIANT_SHIFT;
const SETTING_IN_TICKS: u64 = 1 << (VARIANT_SHIFT + 1);

/// A record that says [`Record::Aside`].
const ASIDE_RECORD: [u64; 1] = [ASIDE];

/// What the records of allocations and frees have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Setting {
    device: DeviceId,
    unit: Unit,
    time: u64,
    stream: StreamId,
    owner: MempoolId,
}

/// Makes records of events.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// The setting in the ring. All is 0 before the first, which the other side takes for granted, too.
    setting: Setting,
    /// The head and the address of the record before, where that is a [`FREE`].
    free: (u64, u64),
}

impl Packer {
    /// Puts an event, whose time is in `unit`; says whether it was taken.
    // Always, so that what kind the event is of is known here.
    #[inline(always)]
    pub(super) fn event(&mut self, event: &Event, unit: Unit, out: &mut impl Put) -> bool {
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let fits = self.setting.stream == stream && self.setting.owner == pool.owner;
                if let Some(since) = self.since(event, unit).filter(|_| fits)
                    && let Some(sizes) = sizes(size, requested)
                {
                    self.free = (0, 0);
                    let kind = if pool.kind == PoolKind::Small { SMALL_BLOCK } else { LARGE_BLOCK };
                    return out.put([head(kind, since, site), address, sizes]);
                }
            }
            EventKind::FreeRequested { address, site } => {
                if let Some(since) = self.since(event, unit) {
                    self.free = (head(FREE, since, site), address);
                    return out.put([self.free.0, address]);
                }
            }
            EventKind::FreeCompleted { address, site } => {
                if let Some(since) = self.since(event, unit)
                    && self.free == (head(FREE, since, site), address)
                {
                    self.free = (0, 0);
                    return out.put([COMPLETED_TOO]);
                }
            }
            _ => {}
        }
        self.event_at_length(event, unit, out)
    }

    /// The time since the setting's, where the event goes by that.
    #[inline]
    fn since(&self, event: &Event, unit: Unit) -> Option<u64> {
        let since = event.time_ns.wrapping_sub(self.setting.time);
        (since < SINCE_END && self.setting.device == event.device && self.setting.unit == unit).then_some(since)
    }

    #[cold]
    #[inline(never)]
    fn event_at_length(&mut self, event: &Event, unit: Unit, out: &mut impl Put) -> bool {
        self.free = (0, 0);
        let Setting { stream, owner, .. } = self.setting;
        let (stream, owner, is_short) = match event.kind {
            EventKind::BlockAllocated { size, requested, stream, pool, .. } => {
                (stream, pool.owner, sizes(size, requested).is_some())
            }
            EventKind::FreeRequested { .. } => (stream, owner, true),
            _ => (stream, owner, false),
        };
        if !is_short {
            let (first, second) = pack(event, unit);
            let [a, b, c, d] = first;
            let [e, f, g, h] = second;
            return if first[0] & EIGHT == 0 { out.put(first) } else { out.put([a, b, c, d, e, f, g, h]) };
        }
        self.setting = Setting { device: event.device, unit, time: event.time_ns, stream, owner };
        let in_ticks = if unit == Unit::Ticks { SETTING_IN_TICKS } else { 0 };
        let head = OTHER | in_ticks | u64::from(event.device.0) << DEVICE_SHIFT;
        out.put([head, event.time_ns, stream.0, owner.0, owner.1]) && self.event(event, unit, out)
    }

    /// Something was not taken: what the ring has as its setting is not known any more.
    #[cold]
    pub(super) fn forget(&mut self) {
        // No counter gets as far in a century.
        self.setting.time = 1 << 63;
        self.free = (0, 0);
    }

    /// Puts a place for what stands beside the events.
    pub(super) fn aside(&mut self, out: &mut impl Put) -> bool {
        self.free = (0, 0);
        out.put(ASIDE_RECORD)
    }
}

#[inline]
fn head(kind: u64, since: u64, site: SiteId) -> u64 {
    kind | since << SINCE_SHIFT | u64::from(site.0) << ID_SHIFT
}

#[inline]
fn sizes(size: u64, requested: u64) -> Option<u64> {
    let (units, rest) = (size / SIZE_UNIT, size.wrapping_sub(requested));
    (size.is_multiple_of(SIZE_UNIT) && units < SIZE_END && rest < SIZE_END).then_some(units << ID_SHIFT | rest)
}

type Four = [u64; 4];

/// The words of an event; [`EIGHT`] in the first says whether the second four count.
fn pack(event: &Event, unit: Unit) -> (Four, Four) {
    let &Event { device, time_ns, kind } = event;
    let in_ticks = if unit == Unit::Ticks { TICKS } else { 0 };
    let head = |kind: u64, id: u32| kind | in_ticks | u64::from(device.0) << DEVICE_SHIFT | u64::from(id) << ID_SHIFT;
    let none = Four::default();
    let range = |kind, address, size, requested, stream: StreamId, pool: PoolKey, site: SiteId| {
        let variant = u64::from(pool.kind == PoolKind::Large) << VARIANT_SHIFT;
        let first = [head(kind, site.0) | variant | EIGHT, time_ns, address, size];
        (first, [requested, stream.0, pool.owner.0, pool.owner.1])
    };
    match kind {
        EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
            range(BLOCK_ALLOCATED, address, size, requested, stream, pool, site)
        }
        EventKind::SegmentAllocated { address, size, stream, pool, site } => {
            range(SEGMENT_ALLOCATED, address, size, 0, stream, pool, site)
        }
        EventKind::SegmentMapped { address, size, stream, pool, site } => {
            range(SEGMENT_MAPPED, address, size, 0, stream, pool, site)
        }
        EventKind::FreeRequested { address, site } => ([head(FREE_REQUESTED, site.0), time_ns, address, 0], none),
        EventKind::FreeCompleted { address, site } => ([head(FREE_COMPLETED, site.0), time_ns, address, 0], none),
        EventKind::SegmentFreed { address, size, site } => {
            ([head(SEGMENT_FREED, site.0), time_ns, address, size], none)
        }
        EventKind::SegmentUnmapped { address, size, site } => {
            ([head(SEGMENT_UNMAPPED, site.0), time_ns, address, size], none)
        }
        EventKind::OutOfMemory { requested, device_free, stream, site } => {
            ([head(OUT_OF_MEMORY, site.0) | EIGHT, time_ns, requested, device_free], [stream.0, 0, 0, 0])
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => {
            ([head(MEMORY_SAMPLE, 0) | EIGHT, time_ns, used_by_context, used_by_others], [free, 0, 0, 0])
        }
        EventKind::Mark { stage, name, address, site } => {
            let variant = match stage {
                AnnotationStage::Instant => 0,
                AnnotationStage::Begin => 1,
                AnnotationStage::End => 2,
            };
            ([head(MARK, name.0) | variant << VARIANT_SHIFT, time_ns, address, u64::from(site.0)], none)
        }
        EventKind::Gap { lost } => ([head(GAP, 0), time_ns, lost, 0], none),
    }
}

/// Makes events of records.
#[derive(Debug, Default)]
pub(super) struct Unpacker {
    setting: Setting,
    /// What the last record says, where it is a [`FREE`].
    free: Option<(u64, u64, SiteId)>,
}

impl Unpacker {
    /// The next record, whose words `take` gives; `None` after the last.
    pub(super) fn next(&mut self, mut take: impl FnMut() -> Option<u64>) -> Option<Record> {
        loop {
            let first = take()?;
            let mut rest = || take().expect("records are put as a whole");
            let free = self.free.take();
            let Setting { stream, owner, .. } = self.setting;
            let time = self.setting.time.wrapping_add(first >> SINCE_SHIFT & (SINCE_END - 1));
            let site = SiteId((first >> ID_SHIFT) as u32);
            return Some(match first & KIND_MASK {
                kind @ (SMALL_BLOCK | LARGE_BLOCK) => {
                    let (address, sizes) = (rest(), rest());
                    let size = (sizes >> ID_SHIFT) * SIZE_UNIT;
                    let requested = size.wrapping_sub(sizes & (SIZE_END - 1));
                    let kind = if kind == SMALL_BLOCK { PoolKind::Small } else { PoolKind::Large };
                    let pool = PoolKey { kind, owner };
                    self.event(time, EventKind::BlockAllocated { address, size, requested, stream, pool, site })
                }
                FREE => {
                    let address = rest();
                    self.free = Some((time, address, site));
                    self.event(time, EventKind::FreeRequested { address, site })
                }
                OTHER if first == COMPLETED_TOO => {
                    let (time, address, site) = free.expect("it stands after the free's record");
                    self.event(time, EventKind::FreeCompleted { address, site })
                }
                OTHER => {
                    let unit = if first & SETTING_IN_TICKS == 0 { Unit::Nanoseconds } else { Unit::Ticks };
                    let device = DeviceId((first >> DEVICE_SHIFT) as u16);
                    let (time, stream, owner) = (rest(), StreamId(rest()), MempoolId(rest(), rest()));
                    self.setting = Setting { device, unit, time, stream, owner };
                    continue;
                }
                ASIDE => Record::Aside,
                _ => {
                    let four = [first, rest(), rest(), rest()];
                    unpack(four, || [rest(), rest(), rest(), rest()])
                }
            });
        }
    }

    fn event(&self, time: u64, kind: EventKind) -> Record {
        let Setting { device, unit, .. } = self.setting;
        Record::Event(Event { device, time_ns: time, kind }, unit)
    }
}

/// The record that begins with `first`; where it has eight words, `second` is asked for the others.
fn unpack(first: Four, second: impl FnOnce() -> Four) -> Record {
    let [head, time_ns, address, size] = first;
    let id = (head >> ID_SHIFT) as u32;
    let site = SiteId(id);
    let variant = head >> VARIANT_SHIFT & VARIANT_MASK;
    let [requested, stream, owner_0, owner_1] = if head & EIGHT == 0 { Four::default() } else { second() };
    let pool_kind = if variant == 0 { PoolKind::Small } else { PoolKind::Large };
    let (stream_of_range, pool) = (StreamId(stream), PoolKey { kind: pool_kind, owner: MempoolId(owner_0, owner_1) });
    let kind = match head & KIND_MASK {
        SEGMENT_ALLOCATED => EventKind::SegmentAllocated { address, size, stream: stream_of_range, pool, site },
        SEGMENT_FREED => EventKind::SegmentFreed { address, size, site },
        SEGMENT_MAPPED => EventKind::SegmentMapped { address, size, stream: stream_of_range, pool, site },
        SEGMENT_UNMAPPED => EventKind::SegmentUnmapped { address, size, site },
        BLOCK_ALLOCATED => EventKind::BlockAllocated { address, size, requested, stream: stream_of_range, pool, site },
        FREE_REQUESTED => EventKind::FreeRequested { address, site },
        FREE_COMPLETED => EventKind::FreeCompleted { address, site },
        // These keep other things in the words.
        OUT_OF_MEMORY => {
            EventKind::OutOfMemory { requested: address, device_free: size, stream: StreamId(requested), site }
        }
        MEMORY_SAMPLE => EventKind::MemorySample { used_by_context: address, used_by_others: size, free: requested },
        MARK => {
            let stage = [AnnotationStage::Instant, AnnotationStage::Begin, AnnotationStage::End][variant as usize];
            EventKind::Mark { stage, name: StringId(id), address, site: SiteId(size as u32) }
        }
        GAP => EventKind::Gap { lost: address },
        kind => unreachable!("no record of kind {kind} is ever put into a ring"),
    };
    let unit = if head & TICKS == 0 { Unit::Nanoseconds } else { Unit::Ticks };
    Record::Event(Event { device: DeviceId((head >> DEVICE_SHIFT) as u16), time_ns, kind }, unit)
}

#[cfg(test)]
mod tests;
