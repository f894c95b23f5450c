//! Records: events packed into one to eight words, as they wait in a ring.
//!
//! An [`Event`] takes 96 bytes, the size of its largest kind, and recording mainly costs the cache
//! lines that are written. The three events of a block's lifetime take 48 bytes as records, three
//! quarters of a cache line:
//!
//! ```text
//! head | address | size in 512-byte units (32 bits), unrequested bytes (32)   block allocated
//! head | address                                                             free requested
//! head                                                                       free completed
//!
//! head:  kind (4 bits) | time since the setting's (28) | site (32)
//! ```
//!
//! A completion in the third form has the time of its request. Records refer to the last *setting*,
//! a record that is written when one of its values changes or the time is too far from it:
//!
//! ```text
//! kind (4 bits) | time in ticks? (1) | 0 (3) | device (16) | 0 (40)
//! time | stream | owner of the pool (2 words)
//! ```
//!
//! Everything else, and values that do not fit, are records of four or eight words:
//!
//! ```text
//! head | time | address | size                      enough for a free
//! requested | stream | owner of the pool (2 words)  if the head says that there are eight
//!
//! head:  kind (4 bits) | variant (3) | eight words? (1) | device (16) | time in ticks? (1) | 0 (7)
//!        | site or name (32)
//! ```

use vramscope_trace::{
    AnnotationStage, DeviceId, Event, EventKind, MempoolId, PoolKey, PoolKind, Relabel, SiteId, StreamId, StringId,
};

/// Length of a handle's ring in words (64 bits): 1 MiB, room for the events of 21,845 blocks. A
/// larger ring wakes the recorder less often, but its lines leave the processor's own cache.
pub(super) const RING_LEN: usize = 1 << 17;
/// A destination of records. A record is one to eight 64-bit words that encode an event.
pub(super) trait RecordSink {
    /// Writes a whole record and returns true; writes nothing and returns false if there is no
    /// room.
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool;
}

/// A decoded record: an event, or the placeholder of an item that is stored beside the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// An event; its time is in this unit.
    Event(Event, Unit),
    /// A relabel; its time is in nanoseconds.
    Relabel(Relabel),
    /// A placeholder for the next of the handle's [side records](super::state::SideRecord).
    Side,
}

/// The unit of an event's time: nanoseconds, or ticks of the recorder's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    #[default]
    Nanoseconds,
    /// Ticks of the recorder's clock.
    Ticks,
}

/// Kind of a full-length record, one that contains all values of its event: a segment was
/// allocated. The kind is the lowest four bits of a record's first word.
const SEGMENT_ALLOCATED: u64 = 0;
/// Kind of a full-length record: a segment was freed.
const SEGMENT_FREED: u64 = 1;
/// Kind of a full-length record: memory was mapped into an expandable segment.
const SEGMENT_MAPPED: u64 = 2;
/// Kind of a full-length record: memory was unmapped from an expandable segment.
const SEGMENT_UNMAPPED: u64 = 3;
/// Kind of a full-length record: a block was allocated.
const BLOCK_ALLOCATED: u64 = 4;
/// Kind of a full-length record: the program freed a block.
const FREE_REQUESTED: u64 = 5;
/// Kind of a full-length record: a freed block became reusable.
const FREE_COMPLETED: u64 = 6;
/// Kind of a full-length record: a request failed for lack of memory.
const OUT_OF_MEMORY: u64 = 7;
/// Kind of a full-length record: how many bytes of the device this process and others hold.
const MEMORY_SAMPLE: u64 = 8;
/// Kind of a full-length record: a mark, or the begin or end of an annotation.
const MARK: u64 = 9;
/// Kind of a full-length record: events are missing.
const GAP: u64 = 10;
/// Kind of a record of one word: the placeholder of a side record, an item too large for the ring.
const SIDE: u64 = 11;
/// Kind of a short record, whose other values are in the last [`Setting`]: a small-pool block was
/// allocated.
const SMALL_BLOCK: u64 = 12;
/// Kind of a short record, whose other values are in the last [`Setting`]: a large-pool block was
/// allocated.
const LARGE_BLOCK: u64 = 13;
/// Kind of a short record, whose other values are in the last [`Setting`]: the program freed a
/// block.
const FREE: u64 = 14;
/// Kind of three records that differ in their variant bits: [`COMPLETED_TOO`], [`RELABEL`], and a
/// new [`Setting`].
const OTHER: u64 = 15;

/// Mask of the kind in a record's first word: the lowest four bits.
const KIND_MASK: u64 = 0xf;
/// Bit position of the variant in a record's first word. The variant says small or large pool, or
/// the stage of a mark: begin, end or a single moment.
const VARIANT_SHIFT: u32 = 4;
/// Mask of the variant, three bits, after shifting by [`VARIANT_SHIFT`].
const VARIANT_MASK: u64 = 0x7;
/// Bit in a full-length record's first word: set if the record has eight words, clear if four.
const EIGHT: u64 = 1 << 7;
/// Bit position of the device number (16 bits) in the first word of a full-length record or of a
/// [`Setting`].
const DEVICE_SHIFT: u32 = 8;
/// Bit in the first word of a full-length record: set if its time is in ticks, clear if in
/// nanoseconds.
const TICKS: u64 = 1 << 24;
/// Bit position, in a record's first word, of the number of the site or of a mark's name (32 bits).
const ID_SHIFT: u32 = 32;

/// Bit position, in a short record's first word, of the record's time (28 bits), which counts from
/// the time of the [`Setting`].
const SINCE_SHIFT: u32 = 4;
/// Exclusive limit for the time in a short record, which counts from the time of the [`Setting`]:
/// 128 ms in ticks of a 2.1 GHz counter, or 268 ms in nanoseconds.
const SINCE_END: u64 = 1 << 28;
/// Unit of block sizes in short records: 512 bytes.
const SIZE_UNIT: u64 = 512;
/// Exclusive limit for each of the two sizes in a short record of an allocated block: the block's
/// size in units of [`SIZE_UNIT`], and its rounding waste in bytes.
const SIZE_END: u64 = 1 << 32;

/// A record of one word: the block freed by the record before it became reusable at the time of the
/// free.
const COMPLETED_TOO: u64 = OTHER | 1 << VARIANT_SHIFT;
/// Bit in the first word of a [`Setting`]: set if its time is in ticks, clear if in nanoseconds.
const SETTING_IN_TICKS: u64 = 1 << (VARIANT_SHIFT + 1);

/// Kind and variant of a relabel: three words, with device and site in the first as in a
/// full-length record, the time in nanoseconds, and the address.
const RELABEL: u64 = OTHER | 1 << (VARIANT_SHIFT + 2);

/// The whole placeholder of a side record, as written to the ring: one word that contains only the
/// kind [`SIDE`].
const SIDE_WORDS: [u64; 1] = [SIDE];

/// Device, unit, time, stream and private pool that later short records refer to. A record with new
/// values replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Setting {
    device: DeviceId,
    unit: Unit,
    time: u64,
    stream: StreamId,
    owner: MempoolId,
}

/// Encodes events as records: short ones if their values fit the current [`Setting`], otherwise
/// full-length ones.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// The last setting in the ring; all zeros at first, as the unpacker assumes.
    setting: Setting,
    /// Head and address of the last record, if that is a [`FREE`].
    free: (u64, u64),
}

impl Packer {
    /// Writes an event whose time is in `unit` and returns true; returns false if there is no room.
    // Always inlined, so that the event's kind is known at compile time.
    #[inline(always)]
    pub(super) fn event(&mut self, event: &Event, unit: Unit, out: &mut impl RecordSink) -> bool {
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
        self.put_long_event(event, unit, out)
    }

    /// Returns the time from the [`Setting`]'s time to the event's, or `None` if the event needs a
    /// new setting: it is earlier or too late, of another device, or in another unit.
    #[inline]
    fn since(&self, event: &Event, unit: Unit) -> Option<u64> {
        let since = event.time_ns.wrapping_sub(self.setting.time);
        (since < SINCE_END && self.setting.device == event.device && self.setting.unit == unit).then_some(since)
    }

    /// Writes an event that does not fit a short record with the current [`Setting`]: as a new
    /// setting and a short record, or as a full-length record. Returns false if there is no room.
    #[cold]
    #[inline(never)]
    fn put_long_event(&mut self, event: &Event, unit: Unit, out: &mut impl RecordSink) -> bool {
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

    /// Makes the next short record write a new [`Setting`]. Called after a record found no room,
    /// because the last setting may not have been written.
    #[cold]
    pub(super) fn forget(&mut self) {
        // No counter reaches this in a century.
        self.setting.time = 1 << 63;
        self.free = (0, 0);
    }

    /// Writes a relabel and returns true; returns false if there is no room.
    pub(super) fn relabel(&mut self, relabel: &Relabel, out: &mut impl RecordSink) -> bool {
        self.free = (0, 0);
        let &Relabel { device, time_ns, address, site } = relabel;
        let head = RELABEL | u64::from(device.0) << DEVICE_SHIFT | u64::from(site.0) << ID_SHIFT;
        out.put([head, time_ns, address])
    }

    /// Writes the placeholder of a side record and returns true; returns false if there is no room.
    pub(super) fn side_record(&mut self, out: &mut impl RecordSink) -> bool {
        self.free = (0, 0);
        out.put(SIDE_WORDS)
    }
}

/// Returns the first word of a short record: its kind, the time since the [`Setting`]'s, and the
/// site.
#[inline]
fn head(kind: u64, since: u64, site: SiteId) -> u64 {
    kind | since << SINCE_SHIFT | u64::from(site.0) << ID_SHIFT
}

/// Returns the word of a short record that contains a block's size and its rounding waste (`size`
/// minus `requested`), or `None` if they do not fit one. Both arguments are in bytes.
#[inline]
fn sizes(size: u64, requested: u64) -> Option<u64> {
    let (units, rest) = (size / SIZE_UNIT, size.wrapping_sub(requested));
    (size.is_multiple_of(SIZE_UNIT) && units < SIZE_END && rest < SIZE_END).then_some(units << ID_SHIFT | rest)
}

/// Four words: a full-length record, or half of one with eight words.
type Four = [u64; 4];

/// Returns the words of an event's full-length record. The second four belong to it only if
/// [`EIGHT`] is set in the first word.
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

/// Decodes records, which a [`Packer`] wrote, to events.
#[derive(Debug, Default)]
pub(super) struct Unpacker {
    setting: Setting,
    /// Time, address and site of the last record, if it is a [`FREE`].
    free: Option<(u64, u64, SiteId)>,
}

impl Unpacker {
    /// Decodes and returns the next record, taking its words from `take`; `None` once `take`
    /// returns `None`.
    pub(super) fn next(&mut self, mut take: impl FnMut() -> Option<u64>) -> Option<Record> {
        loop {
            let first = take()?;
            let mut rest = || take().expect("records are written as a whole");
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
                    let (time, address, site) = free.expect("a completion follows its free");
                    self.event(time, EventKind::FreeCompleted { address, site })
                }
                OTHER if first & RELABEL == RELABEL => {
                    let device = DeviceId((first >> DEVICE_SHIFT) as u16);
                    Record::Relabel(Relabel { device, time_ns: rest(), address: rest(), site })
                }
                OTHER => {
                    let unit = if first & SETTING_IN_TICKS == 0 { Unit::Nanoseconds } else { Unit::Ticks };
                    let device = DeviceId((first >> DEVICE_SHIFT) as u16);
                    let (time, stream, owner) = (rest(), StreamId(rest()), MempoolId(rest(), rest()));
                    self.setting = Setting { device, unit, time, stream, owner };
                    continue;
                }
                SIDE => Record::Side,
                _ => {
                    let four = [first, rest(), rest(), rest()];
                    unpack(four, || [rest(), rest(), rest(), rest()])
                }
            });
        }
    }

    /// Returns an event of the current [`Setting`]'s device, at `time` in that setting's unit.
    fn event(&self, time: u64, kind: EventKind) -> Record {
        let Setting { device, unit, .. } = self.setting;
        Record::Event(Event { device, time_ns: time, kind }, unit)
    }
}

/// Decodes the full-length record that begins with `first`; `second` returns the other four words
/// of a record with eight.
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
        // These kinds use the words after the first for other values.
        OUT_OF_MEMORY => {
            EventKind::OutOfMemory { requested: address, device_free: size, stream: StreamId(requested), site }
        }
        MEMORY_SAMPLE => EventKind::MemorySample { used_by_context: address, used_by_others: size, free: requested },
        MARK => {
            let stage = [AnnotationStage::Instant, AnnotationStage::Begin, AnnotationStage::End][variant as usize];
            EventKind::Mark { stage, name: StringId(id), address, site: SiteId(size as u32) }
        }
        GAP => EventKind::Gap { lost: address },
        kind => unreachable!("a record of kind {kind} is never written"),
    };
    let unit = if head & TICKS == 0 { Unit::Nanoseconds } else { Unit::Ticks };
    Record::Event(Event { device: DeviceId((head >> DEVICE_SHIFT) as u16), time_ns, kind }, unit)
}

#[cfg(test)]
mod tests;
