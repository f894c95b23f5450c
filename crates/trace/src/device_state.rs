//! The memory of one device, and how each event changes it.
//!
//! Events from outside may contradict the known state: a free of a block that was never allocated,
//! a segment on top of another. The newer event wins: blocks or segments that contradict it are
//! removed, and [`DeviceState::inconsistencies`] counts the contradiction.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::address_map::{AddressMap, Position};
use crate::counters::{Counters, FreeSpace, MemorySample};
use crate::event::{Event, EventKind};
use crate::segment::{Block, Extent, Segment, is_range};
use crate::site::SiteId;

/// The segments, active blocks and counters of one device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    pub(crate) segments: AddressMap<Segment>,
    pub(crate) blocks: AddressMap<Block>,
    pub(crate) counters: Counters,
    /// Number of the device's events.
    pub(crate) events: u64,
    /// Number of failed requests.
    pub(crate) ooms: u64,
    /// Number of contradictions between events and the known state.
    pub(crate) inconsistencies: u64,
    /// The driver's last report on the device's memory.
    pub(crate) sample: Option<MemorySample>,
    /// The numbers of the sites at which relabeled blocks were allocated, by address.
    pub(crate) allocation_sites: BTreeMap<u64, u32>,
}

impl DeviceState {
    /// Returns the device's segments in address order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> + '_ {
        self.segments.iter()
    }

    /// Returns the device's active blocks (allocated or pending free) in address order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &Block> + '_ {
        self.blocks.iter()
    }

    /// Returns the active block that begins at exactly `address`, or `None`.
    #[must_use]
    #[inline]
    pub fn block(&self, address: u64) -> Option<&Block> {
        self.blocks.get(address)
    }

    /// Returns the site at which a block of this device was allocated: [`Block::site`] unless the
    /// block was relabeled.
    #[must_use]
    pub fn allocation_site(&self, block: &Block) -> SiteId {
        self.allocation_sites.get(&block.address).map_or(block.site, |&site| SiteId(site))
    }

    /// Returns the active block that contains the byte at `address`, or `None`.
    #[must_use]
    pub fn block_at(&self, address: u64) -> Option<&Block> {
        self.blocks.at_or_before(address).filter(|block| address < block.end())
    }

    /// Returns the segment that contains the byte at `address`, or `None`.
    #[must_use]
    pub fn segment_at(&self, address: u64) -> Option<&Segment> {
        self.segments.at_or_before(address).filter(|segment| address < segment.end())
    }

    /// Returns true if the whole segment is free: it contains no active block.
    #[must_use]
    pub fn is_free(&self, segment: &Segment) -> bool {
        self.extents(segment).next().is_some_and(|first| first.block.is_none() && first.size == segment.size)
    }

    /// Returns the blocks and free ranges of a segment in address order, without gaps.
    pub fn extents(&self, segment: &Segment) -> impl Iterator<Item = Extent<'_>> + '_ {
        let end = segment.end();
        let mut at = segment.address;
        let mut blocks = self.blocks.iter_from(segment.address).take_while(move |block| block.address < end).peekable();
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let extent = match blocks.peek() {
                Some(&block) if block.address <= at => {
                    blocks.next();
                    Extent { address: at, size: block.end().min(end) - at, block: Some(block) }
                }
                next => {
                    let until = next.map_or(end, |block| block.address.min(end));
                    Extent { address: at, size: until - at, block: None }
                }
            };
            at += extent.size;
            Some(extent)
        })
    }

    /// Returns the number, total size and largest size of the free blocks in all segments.
    ///
    /// The cost is linear in the number of segments and blocks.
    #[must_use]
    pub fn free_space(&self) -> FreeSpace {
        let mut free = FreeSpace::default();
        for extent in self.segments().flat_map(|segment| self.extents(segment)).filter(|extent| extent.block.is_none())
        {
            free.total = free.total.saturating_add(extent.size);
            free.largest = free.largest.max(extent.size);
            free.blocks += 1;
        }
        free
    }

    /// Returns the device's allocated, active, reserved and requested bytes.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of this device's events up to the state's moment.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the number of this device's out-of-memory events up to the state's moment.
    #[must_use]
    pub fn ooms(&self) -> u64 {
        self.ooms
    }

    /// Returns how often this device's events contradicted the memory state, up to the state's
    /// moment.
    #[must_use]
    pub fn inconsistencies(&self) -> u64 {
        self.inconsistencies
    }

    /// Returns the driver's last report on the device's whole memory, or `None` if none was
    /// recorded.
    #[must_use]
    pub fn sample(&self) -> Option<MemorySample> {
        self.sample
    }

    /// Adds a segment, or a range of memory that was mapped into an expandable segment.
    ///
    /// Adjacent expandable segments of the same stream and pool become one. Segments that overlap
    /// the new one are removed, which counts as one inconsistency. An empty range is not added but
    /// counts as an inconsistency.
    pub fn insert_segment(&mut self, segment: Segment) {
        if !is_range(segment.address, segment.size) {
            return self.count_inconsistency();
        }
        self.evict_segments(segment.address..segment.end());
        self.counters.reserved = self.counters.reserved.saturating_add(segment.size);
        let mut merged = segment;
        if segment.expandable {
            let joins =
                |other: &Segment| other.expandable && other.stream == segment.stream && other.pool == segment.pool;
            if let Some(below) = self.segments.before(segment.address).copied()
                && below.end() == segment.address
                && joins(&below)
            {
                self.segments.remove(below.address);
                merged = Segment { size: below.size.saturating_add(merged.size), ..below };
            }
            if let Some(above) = self.segments.get(segment.end()).copied().filter(joins) {
                self.segments.remove(above.address);
                merged.size = merged.size.saturating_add(above.size);
            }
        }
        self.segments.insert_disjoint(merged);
    }

    /// Adds an active block.
    ///
    /// Blocks that overlap it are removed. Each removed block, a block outside of every segment,
    /// and a requested size above the block's size count as an inconsistency.
    pub fn insert_block(&mut self, block: Block) {
        if !is_range(block.address, block.size) {
            return self.count_inconsistency();
        }
        let in_segment = self.segment_at(block.address).is_some_and(|segment| block.end() <= segment.end());
        if !in_segment || block.requested > block.size {
            self.count_inconsistency();
        }
        let block = Block { requested: block.requested.min(block.size), ..block };
        if self.blocks.insert_disjoint(block).is_none() {
            self.evict_blocks(block.address..block.end());
            self.blocks.insert_disjoint(block);
        }
        self.counters.add_block(block.size, block.requested, block.pending_free);
    }

    /// Replaces the segments and blocks by the segments and blocks of `observed`, a full state
    /// recorded after events were lost.
    ///
    /// A segment or block that is unchanged keeps the event and time since which it exists, and a
    /// block the site of its last relabel; any other segment or block gets `event` (an event index)
    /// and `time_ns`, the latest possible event and time. The counts of events, failed requests and
    /// inconsistencies stay.
    pub fn resync(&mut self, observed: &Self, event: u64, time_ns: u64) {
        let mut synced =
            Self { events: self.events, ooms: self.ooms, inconsistencies: self.inconsistencies, ..Self::default() };
        for &segment in observed.segments() {
            let known = self.segment_at(segment.address).filter(|known| {
                (known.stream, known.pool, known.expandable) == (segment.stream, segment.pool, segment.expandable)
            });
            let since_event = known.map_or(event, |known| known.since_event);
            synced.insert_segment(Segment { since_event, ..segment });
        }
        for &block in observed.blocks() {
            let known = self.block(block.address).filter(|known| {
                (known.size, known.requested) == (block.size, block.requested)
                    && self.allocation_site(known) == observed.allocation_site(&block)
                    && (known.stream, known.pool) == (block.stream, block.pool)
                    && (block.pending_free || !known.pending_free)
            });
            let (since_event, since_ns) = known.map_or((event, time_ns), |known| (known.since_event, known.since_ns));
            let is_relabeled = observed.allocation_sites.contains_key(&block.address);
            let site = known.filter(|_| !is_relabeled).map_or(block.site, |known| known.site);
            synced.insert_block(Block { since_event, since_ns, site: observed.allocation_site(&block), ..block });
            synced.set_site(block.address, site);
        }
        synced.sample = observed.sample.or(self.sample);
        *self = synced;
    }

    /// Returns a copy with other site, event and time values, for merging into another recording.
    ///
    /// `segment` returns a segment's new site and the index of the event that created it; `block`
    /// returns a block's new site, and the index and time of the event that allocated it.
    #[must_use]
    pub fn with_remapped_ids(
        &self,
        mut segment: impl FnMut(&Segment) -> (SiteId, u64),
        mut block: impl FnMut(&Block) -> (SiteId, u64, u64),
    ) -> Self {
        let mut segments = AddressMap::default();
        for &known in self.segments() {
            let (site, since_event) = segment(&known);
            segments.insert_disjoint(Segment { site, since_event, ..known });
        }
        let mut blocks = AddressMap::default();
        for &known in self.blocks() {
            let (site, since_event, since_ns) = block(&known);
            blocks.insert_disjoint(Block { site, since_event, since_ns, ..known });
        }
        let mut remapped = Self { segments, blocks, allocation_sites: BTreeMap::new(), ..*self };
        for (&address, &site) in &self.allocation_sites {
            if let Some(known) = self.block(address) {
                let (site, ..) = block(&Block { site: SiteId(site), ..*known });
                remapped.allocation_sites.insert(address, site.0);
            }
        }
        remapped
    }

    /// Gives the block that begins at exactly `address` a new site, as a [relabel](crate::Relabel).
    /// If no block begins there, only counts an inconsistency.
    pub fn relabel(&mut self, address: u64, site: SiteId) {
        if !self.set_site(address, site) {
            self.count_inconsistency();
        }
    }

    /// Gives the block that begins at exactly `address` a new site. Returns false if no block
    /// begins there.
    fn set_site(&mut self, address: u64, site: SiteId) -> bool {
        let Some(block) = self.blocks.get_mut(address) else { return false };
        let before = std::mem::replace(&mut block.site, site);
        match self.allocation_sites.get(&address) {
            Some(&allocation_site) if allocation_site == site.0 => self.forget_allocation_site(address),
            None if before != site => drop(self.allocation_sites.insert(address, before.0)),
            _ => {}
        }
        true
    }

    /// Adds 1 to the number of contradictions between events and state.
    fn count_inconsistency(&mut self) {
        self.inconsistencies = self.inconsistencies.saturating_add(1);
    }

    /// Adds `events` to the number of the device's events; nothing else changes.
    #[inline]
    pub(crate) fn count_events(&mut self, events: u64) {
        self.events = self.events.saturating_add(events);
    }

    /// Removes `size` bytes from the allocated bytes, because the program freed a block. Active
    /// bytes stay until the free is completed.
    #[inline]
    pub(crate) fn subtract_allocated(&mut self, size: u64) {
        self.counters.allocated = self.counters.allocated.saturating_sub(size);
    }

    /// Inserts a block that the counters already contain, and returns its position. `segment_end`
    /// is the address after the segment that contains the block's address; 0 if no segment does.
    /// `previous` is the position of the last inserted block, or `None` if a block was removed
    /// since. Returns `None`, changing nothing, if the block is invalid, not inside that segment,
    /// or overlaps another one.
    pub(crate) fn insert_counted_block(
        &mut self,
        block: Block,
        segment_end: u64,
        previous: Option<Position>,
    ) -> Option<Position> {
        let is_valid =
            is_range(block.address, block.size) && block.requested <= block.size && block.end() <= segment_end;
        if is_valid { self.blocks.insert_near(previous, block) } else { None }
    }

    /// Removes the block that begins at `address` from the blocks and counters. Returns false,
    /// changing nothing, if no block begins there.
    pub(crate) fn remove_block(&mut self, address: u64) -> bool {
        let Some(block) = self.blocks.remove(address) else { return false };
        if !self.allocation_sites.is_empty() {
            self.forget_allocation_site(address);
        }
        self.counters.subtract_block(block.size, block.requested, block.pending_free);
        true
    }

    /// Removes the allocation site of a block that has been removed.
    // Cold, so that removing blocks takes no longer in recordings without relabels.
    #[cold]
    #[inline(never)]
    fn forget_allocation_site(&mut self, address: u64) {
        self.allocation_sites.remove(&address);
    }

    /// Removes all blocks that overlap the addresses in `range`; each counts as an inconsistency.
    fn evict_blocks(&mut self, range: Range<u64>) {
        while let Some(block) = self.blocks.before(range.end).copied()
            && block.end() > range.start
        {
            self.remove_block(block.address);
            self.count_inconsistency();
        }
    }

    /// Removes the addresses in `range` from the segments, with the blocks there, and returns the
    /// number of bytes removed: from expandable segments the overlap only, other segments as a
    /// whole.
    fn cut_segments(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0u64;
        while let Some(segment) = self.segments.before(range.end).copied()
            && segment.end() > range.start
        {
            self.segments.remove(segment.address);
            let cut = if segment.expandable {
                segment.address.max(range.start)..segment.end().min(range.end)
            } else {
                segment.address..segment.end()
            };
            if segment.address < cut.start {
                self.segments.insert_disjoint(Segment { size: cut.start - segment.address, ..segment });
            }
            if cut.end < segment.end() {
                self.segments.insert_disjoint(Segment { address: cut.end, size: segment.end() - cut.end, ..segment });
            }
            self.evict_blocks(cut.clone());
            removed = removed.saturating_add(cut.end - cut.start);
        }
        self.counters.reserved = self.counters.reserved.saturating_sub(removed);
        removed
    }

    /// Removes the addresses in `range` from the segments, as `cut_segments` does. Counts one
    /// inconsistency if any segment overlapped them.
    fn evict_segments(&mut self, range: Range<u64>) {
        if self.cut_segments(range) > 0 {
            self.count_inconsistency();
        }
    }

    /// Removes the segment at `address`, which is not expandable. Counts an inconsistency if no
    /// segment begins there or its size is not `size` bytes.
    fn free_segment(&mut self, address: u64, size: u64) {
        let segment = self.segments.get(address).filter(|segment| !segment.expandable).copied();
        if segment.is_none_or(|segment| segment.size != size) {
            self.count_inconsistency();
        }
        if let Some(segment) = segment {
            self.cut_segments(address..segment.end());
        }
    }

    /// Removes the `size` bytes at `address` from an expandable segment. Counts an inconsistency if
    /// not all of them were mapped.
    fn unmap(&mut self, address: u64, size: u64) {
        if !is_range(address, size) || self.cut_segments(address..address + size) != size {
            self.count_inconsistency();
        }
    }

    /// Applies an event of this device to its state; `index` (from 0) is the event's index in the
    /// recording.
    #[inline]
    pub(crate) fn apply(&mut self, index: u64, event: &Event) {
        self.events = self.events.saturating_add(1);
        match event.kind {
            EventKind::SegmentAllocated { address, size, stream, pool, site }
            | EventKind::SegmentMapped { address, size, stream, pool, site } => {
                let expandable = matches!(event.kind, EventKind::SegmentMapped { .. });
                self.insert_segment(Segment { address, size, stream, pool, expandable, site, since_event: index });
            }
            EventKind::SegmentFreed { address, size, .. } => self.free_segment(address, size),
            EventKind::SegmentUnmapped { address, size, .. } => self.unmap(address, size),
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => self.insert_block(Block {
                address,
                size,
                requested,
                stream,
                pool,
                site,
                pending_free: false,
                since_event: index,
                since_ns: event.time_ns,
            }),
            EventKind::FreeRequested { address, .. } => match self.blocks.get_mut(address) {
                Some(block) if !block.pending_free => {
                    block.pending_free = true;
                    self.counters.allocated = self.counters.allocated.saturating_sub(block.size);
                }
                _ => self.count_inconsistency(),
            },
            EventKind::FreeCompleted { address, .. } => {
                if !self.remove_block(address) {
                    self.count_inconsistency();
                }
            }
            EventKind::OutOfMemory { .. } => self.ooms = self.ooms.saturating_add(1),
            EventKind::MemorySample { used_by_context, used_by_others, free } => {
                self.sample = Some(MemorySample { used_by_context, used_by_others, free });
            }
            EventKind::Mark { .. } | EventKind::Gap { .. } => {}
        }
    }
}
