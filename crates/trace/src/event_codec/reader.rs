//! Decodes the events of one chunk.

use super::fields::{read_device, read_pool};
use super::layout::{
    AddressCandidates, AllocationShape, COLUMNS, CONSISTENT, MAX_COLUMNS_LEN, MAX_EVENTS, OPTIONAL_COLUMNS,
    TIME_GOES_BACK, column, operation,
};
use super::other_events::read_event;
use super::relabels::{ChunkRelabels, PlacedRelabel, read_relabels};
use crate::columns::Columns;
use crate::compression::Decompressor;
use crate::event::{AllocatedBlock, DeviceId, Event, EventKind, Relabel, StreamId};
use crate::site::SiteId;
use crate::varint::{PayloadError, Reader};

/// A block that an [`Operation`] frees, with the site and time of the free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedBlock {
    /// The index (from 0) of the chunk's allocation that made the block; `None` if the block is
    /// older than the chunk.
    pub(crate) allocation: Option<u32>,
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    /// Where it was freed.
    pub(crate) site: SiteId,
    /// When the free was requested; in [`Operation::FreeCompleted`], when it was completed.
    pub(crate) time_ns: u64,
}

/// An entry of a chunk of events: one event, or a free's request and completion that follow each
/// other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Allocated {
        allocated: AllocatedBlock,
        time_ns: u64,
    },
    /// Two events: a free requested, and completed by the next event.
    Freed {
        block: FreedBlock,
        completed_ns: u64,
    },
    FreeRequested(FreedBlock),
    FreeCompleted(FreedBlock),
    /// Any other event.
    Other(Event),
}

impl Operation {
    /// Returns the number of the operation's events: 2 for a free that is requested and completed
    /// at once, else 1.
    #[inline]
    pub(crate) fn event_count(&self) -> u64 {
        if matches!(self, Self::Freed { .. }) { 2 } else { 1 }
    }

    /// Returns the device whose memory the operation changes.
    #[inline]
    pub(crate) fn device(&self) -> DeviceId {
        match self {
            Self::Allocated { allocated, .. } => allocated.device,
            Self::Freed { block, .. } | Self::FreeRequested(block) | Self::FreeCompleted(block) => block.device,
            Self::Other(event) => event.device,
        }
    }

    /// Calls `each` with each of the operation's one or two events, in order.
    #[inline]
    pub(crate) fn for_each_event(&self, mut each: impl FnMut(Event)) {
        match *self {
            Self::Allocated { allocated, time_ns } => {
                let AllocatedBlock { device, address, size, requested, stream, pool, site } = allocated;
                let kind = EventKind::BlockAllocated { address, size, requested, stream, pool, site };
                each(Event { device, time_ns, kind });
            }
            Self::Freed { block: FreedBlock { device, address, site, time_ns, .. }, completed_ns } => {
                each(Event { device, time_ns, kind: EventKind::FreeRequested { address, site } });
                each(Event { device, time_ns: completed_ns, kind: EventKind::FreeCompleted { address, site } });
            }
            Self::FreeRequested(FreedBlock { device, address, site, time_ns, .. }) => {
                each(Event { device, time_ns, kind: EventKind::FreeRequested { address, site } });
            }
            Self::FreeCompleted(FreedBlock { device, address, site, time_ns, .. }) => {
                each(Event { device, time_ns, kind: EventKind::FreeCompleted { address, site } });
            }
            Self::Other(event) => each(event),
        }
    }
}

/// The events of a chunk as decompressed columns that are not decoded yet, with their table of
/// shapes.
#[derive(Clone, Debug)]
pub(crate) struct EventColumns {
    /// Time of the first event, in nanoseconds.
    start_ns: u64,
    /// Number of nanoseconds in one step of a time difference.
    unit: u64,
    /// Whether time differences are signed, because some time is before that of the previous event.
    time_goes_back: bool,
    is_consistent: bool,
    event_count: u32,
    columns: Columns<COLUMNS, OPTIONAL_COLUMNS>,
    shapes: Vec<AllocationShape>,
    relabels: ChunkRelabels,
}

impl EventColumns {
    /// Reads the payload of a chunk of events, whose header says that it has `event_count` events.
    /// Returns an error if that is above [`MAX_EVENTS`] or the columns are damaged.
    pub(crate) fn read(
        mut reader: Reader<'_>,
        event_count: u32,
        decompressor: &mut Decompressor,
    ) -> Result<Self, PayloadError> {
        if event_count > MAX_EVENTS {
            return Err(reader.payload_error("more events than a chunk may hold"));
        }
        let (start_ns, unit) = (reader.u64()?, reader.u64()?);
        let flags = reader.byte()?;
        if flags & !(TIME_GOES_BACK | CONSISTENT) != 0 {
            return Err(reader.payload_error("unknown flags in a chunk of events"));
        }
        let (time_goes_back, is_consistent) = (flags & TIME_GOES_BACK != 0, flags & CONSISTENT != 0);
        let columns = Columns::read(&mut reader, decompressor, MAX_COLUMNS_LEN)?;
        let shapes = read_shapes(columns.column(column::SHAPE_TABLE))?;
        let relabels = read_relabels(&columns, start_ns, event_count)?;
        Ok(Self { start_ns, unit, time_goes_back, is_consistent, event_count, columns, shapes, relabels })
    }

    /// Returns true if the writer marked the events as consistent: no event contradicts the memory
    /// state before it. If false, some may.
    pub(crate) fn is_consistent(&self) -> bool {
        self.is_consistent
    }

    /// Returns the memory that the columns occupy, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.columns.len()
            + self.shapes.len() * size_of::<AllocationShape>()
            + self.relabels.relabels.len() * size_of::<PlacedRelabel>()
    }

    /// Returns the chunk's relabels, each with its position among the events.
    pub(crate) fn relabels(&self) -> &ChunkRelabels {
        &self.relabels
    }

    /// Returns a reader that starts at the first operation of the chunk.
    pub(crate) fn operations(&self) -> EventReader<'_> {
        let columns = &self.columns;
        let address_candidates = columns.column(column::ADDRESS_CANDIDATES);
        let mut reader = EventReader {
            unit: self.unit,
            time_goes_back: self.time_goes_back,
            events_left: self.event_count,
            events_after_relabel: 0,
            relabels: &self.relabels.relabels,
            event_count: self.event_count,
            time_ns: self.start_ns,
            operations: columns.column(column::OPERATIONS),
            times: columns.column(column::TIMES),
            completion_delays: columns.column(column::COMPLETION_DELAYS),
            shape_numbers: columns.column(column::SHAPES),
            allocated: Vec::with_capacity(address_candidates.remaining().min(MAX_EVENTS as usize)),
            address_candidates,
            addresses: columns.column(column::ADDRESSES),
            sites: columns.column(column::SITES),
            allocation_ages: columns.column(column::ALLOCATION_AGES),
            older_blocks: columns.column(column::OLDER_BLOCKS),
            free_sites: columns.column(column::FREE_SITES),
            other_events: columns.column(column::OTHER_EVENTS),
            shapes: &self.shapes,
            candidates: AddressCandidates::default(),
            last_address: 0,
            last_older_block: 0,
            last_segment: 0,
        };
        reader.skip_relabels(0);
        reader
    }
}

/// Decodes the operations of one chunk of events in order.
pub(crate) struct EventReader<'a> {
    unit: u64,
    time_goes_back: bool,
    /// Number of events not decoded yet.
    events_left: u32,
    /// Number of events after the next relabel; 0 if no relabel follows.
    events_after_relabel: u32,
    /// The relabels that have not been returned.
    relabels: &'a [PlacedRelabel],
    event_count: u32,
    time_ns: u64,
    operations: Reader<'a>,
    times: Reader<'a>,
    completion_delays: Reader<'a>,
    shape_numbers: Reader<'a>,
    address_candidates: Reader<'a>,
    addresses: Reader<'a>,
    sites: Reader<'a>,
    allocation_ages: Reader<'a>,
    older_blocks: Reader<'a>,
    free_sites: Reader<'a>,
    other_events: Reader<'a>,
    shapes: &'a [AllocationShape],
    candidates: AddressCandidates,
    /// Address and device of the blocks that the chunk allocated so far.
    allocated: Vec<(u64, DeviceId)>,
    last_address: u64,
    last_older_block: u64,
    last_segment: u64,
}

impl EventReader<'_> {
    /// Returns the number of events that the chunk has, decoded or not.
    pub(crate) fn event_count(&self) -> u32 {
        self.event_count
    }

    /// Skips the next `count` relabels, which the reader has already.
    pub(crate) fn skip_relabels(&mut self, count: usize) {
        self.relabels = self.relabels.get(count..).unwrap_or_default();
        self.events_after_relabel = self.relabels.first().map_or(0, |next| self.event_count - next.position);
    }

    /// Returns the next operation of the chunk; `None` after the last operation, and before
    /// relabels: call [`take_relabel`](Self::take_relabel) until it returns `None`, then this
    /// function again.
    #[inline(always)]
    pub(crate) fn next_operation(&mut self) -> Result<Option<Operation>, PayloadError> {
        if self.events_left <= self.events_after_relabel {
            return self.pause_or_end().map(|()| None);
        }
        let time_ns = next_time(self.time_ns, self.unit, self.time_goes_back, &mut self.times)?;
        self.time_ns = time_ns;
        self.events_left -= 1;
        let code = self.operations.byte()?;
        Ok(Some(match code {
            operation::ALLOCATED => self.read_allocation(time_ns)?,
            operation::FREED => {
                let block = self.read_free(time_ns)?;
                self.events_left = self.events_left.checked_sub(1).ok_or(TOO_MANY_EVENTS)?;
                self.time_ns = next_time(time_ns, self.unit, self.time_goes_back, &mut self.completion_delays)?;
                self.candidates.push(block.address);
                Operation::Freed { block, completed_ns: self.time_ns }
            }
            operation::FREE_REQUESTED => Operation::FreeRequested(self.read_free(time_ns)?),
            operation::FREE_COMPLETED => {
                let block = self.read_free(time_ns)?;
                self.candidates.push(block.address);
                Operation::FreeCompleted(block)
            }
            operation::OTHER => self.read_other(time_ns)?,
            _ => return Err(self.operations.payload_error("unknown operation")),
        }))
    }

    /// Decodes the next allocation, which happened at `time_ns`.
    #[inline(always)]
    fn read_allocation(&mut self, time_ns: u64) -> Result<Operation, PayloadError> {
        let number = self.shape_numbers.u64()?;
        let shape = usize::try_from(number).ok().and_then(|number| self.shapes.get(number));
        let Some(&AllocationShape { device, stream, pool, requested, size }) = shape else {
            return Err(self.shape_numbers.payload_error("shape number outside of the table"));
        };
        let address = match self.address_candidates.byte()? {
            0 => {
                self.last_address = self.addresses.delta(self.last_address)?;
                self.last_address
            }
            ago => match self.candidates.get(ago) {
                Some(address) => address,
                None => return Err(self.address_candidates.payload_error("address candidate that does not exist")),
            },
        };
        let site = SiteId(self.sites.u32()?);
        self.candidates.push(address.wrapping_add(size));
        self.allocated.push((address, device));
        let allocated = AllocatedBlock { device, address, size, requested, stream, pool, site };
        Ok(Operation::Allocated { allocated, time_ns })
    }

    /// Decodes the next free, which happened at `time_ns`.
    #[inline(always)]
    fn read_free(&mut self, time_ns: u64) -> Result<FreedBlock, PayloadError> {
        let age = self.allocation_ages.u64()?;
        let site = SiteId(self.free_sites.u32()?);
        if age == 0 {
            let device = read_device(&mut self.older_blocks)?;
            self.last_older_block = self.older_blocks.delta(self.last_older_block)?;
            return Ok(FreedBlock { allocation: None, device, address: self.last_older_block, site, time_ns });
        }
        let allocation = usize::try_from(age).ok().and_then(|age| self.allocated.len().checked_sub(age));
        match allocation.and_then(|allocation| Some((allocation, self.allocated.get(allocation)?))) {
            Some((allocation, &(address, device))) => {
                Ok(FreedBlock { allocation: Some(allocation as u32), device, address, site, time_ns })
            }
            None => Err(self.allocation_ages.payload_error("free of a block that was not allocated yet")),
        }
    }

    /// Decodes the next event that is neither an allocation nor a free, which happened at
    /// `time_ns`.
    #[inline(never)]
    fn read_other(&mut self, time_ns: u64) -> Result<Operation, PayloadError> {
        let (device, kind) = read_event(&mut self.other_events, &mut self.last_segment)?;
        Ok(Operation::Other(Event { device, time_ns, kind }))
    }

    /// Returns the next relabel before the next operation, and moves past it; `None` if no relabel
    /// is left there.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_relabel(&mut self) -> Option<Relabel> {
        let next = self.relabels.first().filter(|_| self.events_left <= self.events_after_relabel)?;
        self.skip_relabels(1);
        Some(next.relabel)
    }

    /// Returns an error at the end of the chunk unless every column was read to its end. Relabels
    /// before the end are no error.
    #[cold]
    fn pause_or_end(&self) -> Result<(), PayloadError> {
        let columns = [
            &self.operations,
            &self.times,
            &self.completion_delays,
            &self.shape_numbers,
            &self.address_candidates,
            &self.addresses,
            &self.sites,
            &self.allocation_ages,
            &self.older_blocks,
            &self.free_sites,
            &self.other_events,
        ];
        if self.relabels.is_empty() { columns.into_iter().try_for_each(Reader::end) } else { Ok(()) }
    }
}

/// The error for a chunk that has more events than its header says.
const TOO_MANY_EVENTS: PayloadError = PayloadError { position: 0, reason: "more events than the chunk's header says" };

/// Returns the time of the next event in nanoseconds: `before_ns` plus the next value of `units`,
/// which counts steps of `unit` nanoseconds. Values are signed if `time_goes_back` is true.
#[inline(always)]
fn next_time(before_ns: u64, unit: u64, time_goes_back: bool, units: &mut Reader<'_>) -> Result<u64, PayloadError> {
    let units = if time_goes_back { units.delta(0)? } else { units.u64()? };
    Ok(before_ns.wrapping_add(units.wrapping_mul(unit)))
}

/// Reads the table of allocation shapes of a chunk of events.
fn read_shapes(mut reader: Reader<'_>) -> Result<Vec<AllocationShape>, PayloadError> {
    let mut shapes = Vec::new();
    while reader.remaining() > 0 {
        if shapes.len() == MAX_EVENTS as usize {
            return Err(reader.payload_error("more shapes than a chunk may have events"));
        }
        let device = read_device(&mut reader)?;
        let stream = StreamId(reader.u64()?);
        let pool = read_pool(&mut reader)?;
        let requested = reader.size()?;
        let size = reader.delta(requested)?;
        shapes.push(AllocationShape { device, stream, pool, requested, size });
    }
    Ok(shapes)
}
