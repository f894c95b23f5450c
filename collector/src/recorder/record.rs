//! Events as they wait in a ring: one slot of four words, or two.
//!
//! ```text
//! head | time | address | size                      a free needs no more than this
//! requested | stream | owner of the pool (2 words)  the second slot, where the head says that there is one
//!
//! head:  kind (4 bits) | variant (3) | second slot? (1) | device (16) | 0 (8) | site or name (32)
//! ```
//!
//! An [`Event`] is as large as its largest kind, 96 bytes. A block's life is three events, and as slots they are 128 bytes, two lines
//! of the cache: what a program pays for recording is for the most part the lines that it writes.

use vramscope_trace::{DeviceId, Event, EventKind, MempoolId, Pool, PoolKind, SiteId, Stage, StreamId, StringId};

/// A place in a ring.
pub(super) type Slot = [u64; 4];

/// What one or two slots hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Event(Event),
    /// Here stands the next of what the ring's handle keeps beside it.
    Aside,
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

const KIND_MASK: u64 = 0xf;
const VARIANT_SHIFT: u32 = 4;
const VARIANT_MASK: u64 = 0x7;
const SECOND: u64 = 1 << 7;
const DEVICE_SHIFT: u32 = 8;
const ID_SHIFT: u32 = 32;

/// A record that says [`Record::Aside`]. Its time is 0, so that it is taken as soon as what stands before it is.
pub(super) const ASIDE_SLOT: Slot = [ASIDE, 0, 0, 0];

/// The slots of an event; [`slots_of`] the first says whether the second counts.
#[inline]
pub(super) fn pack(event: &Event) -> (Slot, Slot) {
    let &Event { device, time_ns, kind } = event;
    let head = |kind: u64, id: u32| kind | u64::from(device.0) << DEVICE_SHIFT | u64::from(id) << ID_SHIFT;
    let none = Slot::default();
    let range = |kind, address, size, requested, stream: StreamId, pool: Pool, site: SiteId| {
        let variant = u64::from(pool.kind == PoolKind::Large) << VARIANT_SHIFT;
        let first = [head(kind, site.0) | variant | SECOND, time_ns, address, size];
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
            ([head(OUT_OF_MEMORY, site.0) | SECOND, time_ns, requested, device_free], [stream.0, 0, 0, 0])
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => {
            ([head(MEMORY_SAMPLE, 0) | SECOND, time_ns, used_by_context, used_by_others], [free, 0, 0, 0])
        }
        EventKind::Mark { stage, name } => {
            let variant = match stage {
                Stage::Instant => 0,
                Stage::Begin => 1,
                Stage::End => 2,
            };
            ([head(MARK, name.0) | variant << VARIANT_SHIFT, time_ns, 0, 0], none)
        }
        EventKind::Gap { lost } => ([head(GAP, 0), time_ns, lost, 0], none),
    }
}

/// How many slots the record takes that begins with `first`.
#[inline]
pub(super) fn slots_of(first: &Slot) -> usize {
    if first[0] & SECOND == 0 { 1 } else { 2 }
}

/// The time of the record that begins with `first`.
pub(super) fn time_ns(first: &Slot) -> u64 {
    first[1]
}

/// The record that begins with `first`; where it has a second slot, `second` is asked for it.
pub(super) fn unpack(first: Slot, second: impl FnOnce() -> Slot) -> Record {
    let [head, time_ns, address, size] = first;
    let id = (head >> ID_SHIFT) as u32;
    let site = SiteId(id);
    let variant = head >> VARIANT_SHIFT & VARIANT_MASK;
    let [requested, stream, owner_0, owner_1] = if head & SECOND == 0 { Slot::default() } else { second() };
    let pool_kind = if variant == 0 { PoolKind::Small } else { PoolKind::Large };
    let (stream_of_range, pool) = (StreamId(stream), Pool { kind: pool_kind, owner: MempoolId(owner_0, owner_1) });
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
            let stage = [Stage::Instant, Stage::Begin, Stage::End][variant as usize];
            EventKind::Mark { stage, name: StringId(id) }
        }
        GAP => EventKind::Gap { lost: address },
        ASIDE => return Record::Aside,
        kind => unreachable!("no record of kind {kind} is ever put into a ring"),
    };
    Record::Event(Event { device: DeviceId((head >> DEVICE_SHIFT) as u16), time_ns, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_comes_out_as_it_went_in() {
        let (address, size, requested, free) = (u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3);
        let (stream, site) = (StreamId(u64::MAX - 4), SiteId(u32::MAX));
        let pools = [
            Pool::default_of(PoolKind::Small),
            Pool { kind: PoolKind::Large, owner: MempoolId(u64::MAX - 5, u64::MAX - 6) },
        ];
        let mut kinds = vec![
            EventKind::SegmentFreed { address, size, site },
            EventKind::SegmentUnmapped { address, size, site },
            EventKind::FreeRequested { address, site },
            EventKind::FreeCompleted { address, site },
            EventKind::OutOfMemory { requested, device_free: free, stream, site },
            EventKind::MemorySample { used_by_context: address, used_by_others: size, free },
            EventKind::Gap { lost: address },
        ];
        for pool in pools {
            kinds.push(EventKind::SegmentAllocated { address, size, stream, pool, site });
            kinds.push(EventKind::SegmentMapped { address, size, stream, pool, site });
            kinds.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        }
        let stages = [Stage::Instant, Stage::Begin, Stage::End];
        kinds.extend(stages.map(|stage| EventKind::Mark { stage, name: StringId(u32::MAX) }));
        for (kind, device) in kinds.into_iter().zip((0..=u16::MAX).rev()) {
            let event = Event { device: DeviceId(device), time_ns: u64::MAX, kind };
            let (first, second) = pack(&event);
            assert_eq!(time_ns(&first), u64::MAX);
            let mut asked = 1;
            let unpacked = unpack(first, || {
                asked += 1;
                second
            });
            assert_eq!((unpacked, asked), (Record::Event(event), slots_of(&first)));
        }
        assert_eq!(unpack(ASIDE_SLOT, || unreachable!("one slot")), Record::Aside);
    }
}
