//! Events that lead from one state of a device to a later one.

use vramscope_trace::{Block, DeviceState, EventKind, PoolKey, Segment, SiteId, StreamId};

/// Returns events that change the segments and blocks of `old` to those of `new`: frees of blocks
/// first, then freed segments, new segments, and new blocks. Blocks and segments that are equal in
/// both states have no events.
pub(super) fn changes(old: &DeviceState, new: &DeviceState) -> Vec<EventKind> {
    let (site, mut events) = (SiteId(0), Vec::new());
    for block in old.blocks() {
        let kept = new.block(block.address).filter(|later| is_kept(old, new, block, later));
        let address = block.address;
        if kept.is_none_or(|later| later.pending_free) && !block.pending_free {
            events.push(EventKind::FreeRequested { address, site });
        }
        if kept.is_none() {
            events.push(EventKind::FreeCompleted { address, site });
        }
    }
    for segment in old.segments() {
        if segment.expandable {
            let unmapped = |(address, size)| EventKind::SegmentUnmapped { address, size, site };
            events.extend(uncovered(segment, new).map(unmapped));
        } else if !has_segment(new, segment) {
            events.push(EventKind::SegmentFreed { address: segment.address, size: segment.size, site });
        }
    }
    for segment in new.segments() {
        let &Segment { address, size, stream, pool, expandable, .. } = segment;
        if expandable {
            let mapped = |(address, size)| EventKind::SegmentMapped { address, size, stream, pool, site };
            events.extend(uncovered(segment, old).map(mapped));
        } else if !has_segment(old, segment) {
            events.push(EventKind::SegmentAllocated { address, size, stream, pool, site });
        }
    }
    for block in new.blocks() {
        let &Block { address, size, requested, stream, pool, pending_free, .. } = block;
        if old.block(address).is_some_and(|earlier| is_kept(old, new, earlier, block)) {
            continue;
        }
        events.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        if pending_free {
            events.push(EventKind::FreeRequested { address, site });
        }
    }
    events
}

/// Returns the fields by which two segments count as equal: address, size, stream, pool, and
/// whether the segment is expandable.
fn identity(segment: &Segment) -> (u64, u64, StreamId, PoolKey, bool) {
    (segment.address, segment.size, segment.stream, segment.pool, segment.expandable)
}

/// Returns true if a state has a segment that is equal to `segment`.
fn has_segment(state: &DeviceState, segment: &Segment) -> bool {
    state.segment_at(segment.address).is_some_and(|known| identity(known) == identity(segment))
}

/// Returns true if `later`, a block of `new`, may be the allocation `earlier` of `old`, so that no
/// event is needed.
fn is_kept(old: &DeviceState, new: &DeviceState, earlier: &Block, later: &Block) -> bool {
    let same_block = (earlier.address, earlier.size, earlier.requested, earlier.stream, earlier.pool)
        == (later.address, later.size, later.requested, later.stream, later.pool)
        && (later.pending_free || !earlier.pending_free);
    let same_segment = match (old.segment_at(earlier.address), new.segment_at(later.address)) {
        (Some(a), Some(b)) if a.expandable && b.expandable => (a.stream, a.pool) == (b.stream, b.pool),
        (Some(a), Some(b)) => identity(a) == identity(b),
        (a, b) => a.is_none() && b.is_none(),
    };
    same_block && same_segment
}

/// Returns the parts (address, size) of an expandable segment that are not mapped in `state` for
/// the segment's stream and pool.
fn uncovered<'a>(segment: &'a Segment, state: &'a DeviceState) -> impl Iterator<Item = (u64, u64)> + 'a {
    let same = |other: &&Segment| other.expandable && (other.stream, other.pool) == (segment.stream, segment.pool);
    let mapped = state.segments().filter(same);
    let inside = mapped.filter(|other| other.address < segment.end() && segment.address < other.end());
    let end = std::iter::once((segment.end(), segment.end()));
    inside
        .map(|other| (other.address, other.end()))
        .chain(end)
        .scan(segment.address, |from, (begin, end)| {
            let gap = (*from, begin.saturating_sub(*from));
            *from = end.max(*from);
            Some(gap)
        })
        .filter(|&(_, size)| size > 0)
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Event, MemoryState};

    use super::*;

    /// Unit of the random states' addresses and sizes.
    const UNIT: u64 = 512;

    /// Returns a state with random segments and blocks in a small range of addresses.
    fn random_state(random: &mut fastrand::Rng) -> DeviceState {
        let mut state = DeviceState::default();
        let mut address = UNIT;
        while address < 64 * UNIT {
            let units = random.u64(1..=8);
            let (size, expandable) = (units * UNIT, random.bool());
            let (stream, pool) = (StreamId(random.u64(0..2)), PoolKey::default());
            let segment = Segment { address, size, stream, pool, expandable, site: SiteId(0), since_event: 0 };
            if random.u8(0..3) > 0 {
                state.insert_segment(segment);
                let mut at = address;
                while at < segment.end() {
                    let size = random.u64(1..=4).min((segment.end() - at) / UNIT) * UNIT;
                    if random.bool() {
                        let requested = size - random.u64(0..2);
                        state.insert_block(Block {
                            address: at,
                            size,
                            requested,
                            stream,
                            pool,
                            site: SiteId(0),
                            pending_free: random.u8(0..4) == 0,
                            since_event: 0,
                            since_ns: 0,
                        });
                    }
                    at += size;
                }
            }
            // A gap, so that two expandable segments do not become one.
            address += size + UNIT;
        }
        state
    }

    /// Returns the segments and blocks without the event numbers and times of their allocation.
    fn contents(state: &DeviceState) -> (Vec<Segment>, Vec<Block>) {
        let segments = state.segments().map(|&segment| Segment { since_event: 0, ..segment }).collect();
        let blocks = state.blocks().map(|&block| Block { since_event: 0, since_ns: 0, ..block }).collect();
        (segments, blocks)
    }

    #[test]
    fn events_lead_from_each_state_to_the_next() {
        let mut random = fastrand::Rng::with_seed(12);
        let device = DeviceId(0);
        let mut memory = MemoryState::default();
        let mut state = DeviceState::default();
        for _ in 0..2_000 {
            let next = random_state(&mut random);
            for kind in changes(&state, &next) {
                memory.apply(&Event { device, time_ns: 0, kind });
            }
            assert_eq!(contents(memory.device_mut(device)), contents(&next));
            assert_eq!(memory.device_mut(device).inconsistencies(), 0);
            assert_eq!(changes(&next, &next), []);
            state = next;
        }
    }
}
