//! The memory of one GPU, and what an event does to it.
//!
//! Events from outside may contradict what is known: a free of a block that nobody allocated, a segment over another. The newer
//! event is believed, the older knowledge that it contradicts is dropped, and each such case is counted in
//! [`DeviceState::misfits`].

use std::ops::Range;

use crate::address_map::AddressMap;
use crate::event::{Event, EventKind};
use crate::event_code::Allocated;
use crate::state::{Block, Counters, Extent, FreeSpace, MemorySample, Segment, is_range};

/// The memory of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    pub(crate) segments: AddressMap<Segment>,
    pub(crate) blocks: AddressMap<Block>,
    pub(crate) counters: Counters,
    pub(crate) events: u64,
    pub(crate) ooms: u64,
    pub(crate) misfits: u64,
    pub(crate) sample: Option<MemorySample>,
}

impl DeviceState {
    /// The segments in address order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> + '_ {
        self.segments.iter()
    }

    /// The live blocks in address order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = &Block> + '_ {
        self.blocks.iter()
    }

    /// The live block that begins at `address`.
    #[must_use]
    #[inline]
    pub fn block(&self, address: u64) -> Option<&Block> {
        self.blocks.get(address)
    }

    /// The live block that holds `address`.
    #[must_use]
    pub fn block_at(&self, address: u64) -> Option<&Block> {
        self.blocks.at_or_before(address).filter(|block| address < block.end())
    }

    /// The segment that holds `address`.
    #[must_use]
    pub fn segment_at(&self, address: u64) -> Option<&Segment> {
        self.segments.at_or_before(address).filter(|segment| address < segment.end())
    }

    /// The stretches of a segment in address order; together they are the whole segment.
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

    /// The free space of all segments.
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

    /// The sums.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many events were this device's.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How many requests failed.
    #[must_use]
    pub fn ooms(&self) -> u64 {
        self.ooms
    }

    /// How many events contradicted what was known.
    #[must_use]
    pub fn misfits(&self) -> u64 {
        self.misfits
    }

    /// What the driver last said.
    #[must_use]
    pub fn sample(&self) -> Option<MemorySample> {
        self.sample
    }

    /// Adds a segment that was there before the first event, or grows by one mapped range.
    pub fn insert_segment(&mut self, segment: Segment) {
        if !is_range(segment.address, segment.size) {
            self.misfit();
            return;
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
        self.segments.insert_apart(merged);
    }

    /// Adds a live block that was there before the first event, or one just allocated.
    pub fn insert_block(&mut self, block: Block) {
        if !is_range(block.address, block.size) {
            self.misfit();
            return;
        }
        let in_segment = self.segment_at(block.address).is_some_and(|segment| block.end() <= segment.end());
        if !in_segment || block.requested > block.size {
            self.misfit();
        }
        let block = Block { requested: block.requested.min(block.size), ..block };
        if !self.blocks.insert_apart(block) {
            self.evict_blocks(block.address..block.end());
            self.blocks.insert_apart(block);
        }
        let counters = &mut self.counters;
        counters.active = counters.active.saturating_add(block.size);
        counters.requested = counters.requested.saturating_add(block.requested);
        if !block.pending_free {
            counters.allocated = counters.allocated.saturating_add(block.size);
        }
    }

    /// Takes the segments and blocks of `seen` in the place of its own, because events are missing and whoever has the memory looked. What
    /// looks just as it was known is taken for the same, and keeps its beginning; all else began at the latest with event `event`, at
    /// `time_ns`. The counts of events, of requests that found no room and of misfits are not touched.
    pub fn resume(&mut self, seen: &Self, event: u64, time_ns: u64) {
        let mut resumed = Self { events: self.events, ooms: self.ooms, misfits: self.misfits, ..Self::default() };
        for &segment in seen.segments() {
            let known = self.segment_at(segment.address).filter(|known| {
                (known.stream, known.pool, known.expandable) == (segment.stream, segment.pool, segment.expandable)
            });
            let since_event = known.map_or(event, |known| known.since_event);
            resumed.insert_segment(Segment { since_event, ..segment });
        }
        for &block in seen.blocks() {
            let known = self.block(block.address).filter(|known| {
                (known.size, known.requested, known.site) == (block.size, block.requested, block.site)
                    && (known.stream, known.pool) == (block.stream, block.pool)
                    && (block.pending_free || !known.pending_free)
            });
            let (since_event, since_ns) = known.map_or((event, time_ns), |known| (known.since_event, known.since_ns));
            resumed.insert_block(Block { since_event, since_ns, ..block });
        }
        resumed.sample = seen.sample.or(self.sample);
        *self = resumed;
    }

    /// Counts an event that contradicts what is known.
    fn misfit(&mut self) {
        self.misfits = self.misfits.saturating_add(1);
    }

    /// Counts events.
    #[inline]
    pub(crate) fn count(&mut self, events: u64) {
        self.events = self.events.saturating_add(events);
    }

    /// Adds a block to the sums.
    #[inline]
    pub(crate) fn add(&mut self, block: &Allocated) {
        let counters = &mut self.counters;
        counters.active = counters.active.saturating_add(block.size);
        counters.requested = counters.requested.saturating_add(block.requested);
        counters.allocated = counters.allocated.saturating_add(block.size);
    }

    /// Takes a block out of the sums; `freed` says that it is not among those handed to the program anymore.
    #[inline]
    pub(crate) fn subtract(&mut self, block: &Allocated, freed: bool) {
        let counters = &mut self.counters;
        counters.active = counters.active.saturating_sub(block.size);
        counters.requested = counters.requested.saturating_sub(block.requested);
        if !freed {
            counters.allocated = counters.allocated.saturating_sub(block.size);
        }
    }

    /// Takes a block of so many bytes out of the sum of what is handed to the program.
    #[inline]
    pub(crate) fn request_free(&mut self, size: u64) {
        self.counters.allocated = self.counters.allocated.saturating_sub(size);
    }

    /// Puts a block, which is in the sums already, among the others; says whether there is room, and memory at all.
    pub(crate) fn settle(&mut self, block: Block) -> bool {
        is_range(block.address, block.size)
            && block.requested <= block.size
            && self.segment_at(block.address).is_some_and(|segment| block.end() <= segment.end())
            && self.blocks.insert_apart(block)
    }

    pub(crate) fn forget_block(&mut self, address: u64) -> bool {
        let Some(block) = self.blocks.remove(address) else { return false };
        let counters = &mut self.counters;
        counters.active = counters.active.saturating_sub(block.size);
        counters.requested = counters.requested.saturating_sub(block.requested);
        if !block.pending_free {
            counters.allocated = counters.allocated.saturating_sub(block.size);
        }
        true
    }

    fn evict_blocks(&mut self, range: Range<u64>) {
        while let Some(block) = self.blocks.before(range.end).copied()
            && block.end() > range.start
        {
            self.forget_block(block.address);
            self.misfit();
        }
    }

    /// Takes `range` out of the segments, keeping what sticks out of it of those that are expandable. Returns the bytes taken out.
    fn cut_segments(&mut self, range: Range<u64>) -> u64 {
        let mut taken = 0u64;
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
                self.segments.insert_apart(Segment { size: cut.start - segment.address, ..segment });
            }
            if cut.end < segment.end() {
                self.segments.insert_apart(Segment { address: cut.end, size: segment.end() - cut.end, ..segment });
            }
            self.evict_blocks(cut.clone());
            taken = taken.saturating_add(cut.end - cut.start);
        }
        self.counters.reserved = self.counters.reserved.saturating_sub(taken);
        taken
    }

    fn evict_segments(&mut self, range: Range<u64>) {
        if self.cut_segments(range) > 0 {
            self.misfit();
        }
    }

    fn free_segment(&mut self, address: u64, size: u64) {
        match self.segments.get(address) {
            Some(segment) if !segment.expandable => {
                let range = address..segment.end();
                if segment.size != size {
                    self.misfit();
                }
                self.cut_segments(range);
            }
            _ => self.misfit(),
        }
    }

    fn unmap(&mut self, address: u64, size: u64) {
        if !is_range(address, size) || self.cut_segments(address..address + size) != size {
            self.misfit();
        }
    }

    #[inline]
    pub(crate) fn apply(&mut self, number: u64, event: &Event) {
        self.events = self.events.saturating_add(1);
        match event.kind {
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                self.insert_segment(Segment {
                    address,
                    size,
                    stream,
                    pool,
                    expandable: false,
                    site,
                    since_event: number,
                });
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                self.insert_segment(Segment {
                    address,
                    size,
                    stream,
                    pool,
                    expandable: true,
                    site,
                    since_event: number,
                });
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
                since_event: number,
                since_ns: event.time_ns,
            }),
            EventKind::FreeRequested { address, .. } => match self.blocks.get_mut(address) {
                Some(block) if !block.pending_free => {
                    block.pending_free = true;
                    self.counters.allocated = self.counters.allocated.saturating_sub(block.size);
                }
                _ => self.misfit(),
            },
            EventKind::FreeCompleted { address, .. } => {
                if !self.forget_block(address) {
                    self.misfit();
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
