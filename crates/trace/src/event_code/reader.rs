//! Reads the events of one chunk.

use super::{COLUMNS, Candidates, MAX_COLUMNS_LEN, MAX_EVENTS, Shape, column, operation, rest};
use crate::columns::Columns;
use crate::event::{DeviceId, Event, EventKind, Pool, StreamId};
use crate::pack::Unpacker;
use crate::site::SiteId;
use crate::varint::{Malformed, Reader};

/// A block as it is allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: Pool,
    pub(crate) site: SiteId,
}

/// What one operation of a chunk stands for. Of a free, `row` is which of the chunk's allocations, from 0, made the block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Allocated {
        allocated: Allocated,
        time_ns: u64,
    },
    /// Two events: the free of a block was requested, and completed at once.
    Freed {
        row: Option<u32>,
        device: DeviceId,
        address: u64,
        site: SiteId,
        requested_ns: u64,
        completed_ns: u64,
    },
    FreeRequested {
        row: Option<u32>,
        device: DeviceId,
        address: u64,
        site: SiteId,
        time_ns: u64,
    },
    FreeCompleted {
        row: Option<u32>,
        device: DeviceId,
        address: u64,
        site: SiteId,
        time_ns: u64,
    },
    /// Any other event.
    Rest(Event),
}

impl Operation {
    /// How many events it stands for.
    #[inline]
    pub(crate) fn events(&self) -> u64 {
        if matches!(self, Self::Freed { .. }) { 2 } else { 1 }
    }

    /// Its events.
    #[inline]
    pub(crate) fn each(&self, mut each: impl FnMut(Event)) {
        match *self {
            Self::Allocated { allocated, time_ns } => {
                let Allocated { device, address, size, requested, stream, pool, site } = allocated;
                let kind = EventKind::BlockAllocated { address, size, requested, stream, pool, site };
                each(Event { device, time_ns, kind });
            }
            Self::Freed { device, address, site, requested_ns, completed_ns, .. } => {
                each(Event { device, time_ns: requested_ns, kind: EventKind::FreeRequested { address, site } });
                each(Event { device, time_ns: completed_ns, kind: EventKind::FreeCompleted { address, site } });
            }
            Self::FreeRequested { device, address, site, time_ns, .. } => {
                each(Event { device, time_ns, kind: EventKind::FreeRequested { address, site } });
            }
            Self::FreeCompleted { device, address, site, time_ns, .. } => {
                each(Event { device, time_ns, kind: EventKind::FreeCompleted { address, site } });
            }
            Self::Rest(event) => each(event),
        }
    }
}

/// A chunk's events, unpacked.
#[derive(Clone, Debug)]
pub(crate) struct EventColumns {
    start_ns: u64,
    unit: u64,
    goes_back: bool,
    fits: bool,
    count: u32,
    columns: Columns<COLUMNS>,
}

impl EventColumns {
    pub(crate) fn read(mut reader: Reader<'_>, count: u32, unpacker: &mut Unpacker) -> Result<Self, Malformed> {
        if count > MAX_EVENTS {
            return Err(reader.malformed("a chunk of more events than one may have"));
        }
        let (start_ns, unit) = (reader.u64()?, reader.u64()?);
        let flags = reader.byte()?;
        if flags & !(super::GOES_BACK | super::FITS) != 0 {
            return Err(reader.malformed("unknown flags of a chunk of events"));
        }
        let (goes_back, fits) = (flags & super::GOES_BACK != 0, flags & super::FITS != 0);
        let columns = Columns::read(&mut reader, unpacker, MAX_COLUMNS_LEN)?;
        Ok(Self { start_ns, unit, goes_back, fits, count, columns })
    }

    /// Whether the writer says that no event contradicts what was known.
    pub(crate) fn fits(&self) -> bool {
        self.fits
    }

    /// Reads from the first event.
    pub(crate) fn operations(&self) -> Result<EventReader<'_>, Malformed> {
        EventReader::new(self)
    }
}

/// Gives the operations of a chunk, one after the other.
pub(crate) struct EventReader<'a> {
    unit: u64,
    goes_back: bool,
    /// Events that are still to come.
    left: u32,
    time_ns: u64,
    operations: Reader<'a>,
    times: Reader<'a>,
    waits: Reader<'a>,
    shape_numbers: Reader<'a>,
    places: Reader<'a>,
    addresses: Reader<'a>,
    sites: Reader<'a>,
    ages: Reader<'a>,
    strangers: Reader<'a>,
    free_sites: Reader<'a>,
    rest: Reader<'a>,
    shapes: Vec<Shape>,
    candidates: Candidates,
    allocated: Vec<(u64, DeviceId)>,
    last_address: u64,
    last_stranger: u64,
    last_segment: u64,
}

impl<'a> EventReader<'a> {
    fn new(events: &'a EventColumns) -> Result<Self, Malformed> {
        let columns = &events.columns;
        let places = columns.column(column::PLACES);
        Ok(Self {
            unit: events.unit,
            goes_back: events.goes_back,
            left: events.count,
            time_ns: events.start_ns,
            operations: columns.column(column::OPERATIONS),
            times: columns.column(column::TIMES),
            waits: columns.column(column::WAITS),
            shape_numbers: columns.column(column::SHAPES),
            allocated: Vec::with_capacity(places.remaining().min(MAX_EVENTS as usize)),
            places,
            addresses: columns.column(column::ADDRESSES),
            sites: columns.column(column::SITES),
            ages: columns.column(column::AGES),
            strangers: columns.column(column::STRANGERS),
            free_sites: columns.column(column::FREE_SITES),
            rest: columns.column(column::REST),
            shapes: read_shapes(columns.column(column::SHAPE_TABLE))?,
            candidates: Candidates::default(),
            last_address: 0,
            last_stranger: 0,
            last_segment: 0,
        })
    }

    /// The next operation; `None` behind the last.
    #[inline(always)]
    pub(crate) fn next_operation(&mut self) -> Result<Option<Operation>, Malformed> {
        if self.left == 0 {
            return self.end().map(|()| None);
        }
        let time_ns = later(self.time_ns, self.unit, self.goes_back, &mut self.times)?;
        self.time_ns = time_ns;
        self.left -= 1;
        let code = self.operations.byte()?;
        Ok(Some(match code {
            operation::ALLOCATED => self.allocated(time_ns)?,
            operation::FREED => {
                let (row, device, address, site) = self.freed()?;
                self.left = self.left.checked_sub(1).ok_or(TOO_MANY)?;
                self.time_ns = later(time_ns, self.unit, self.goes_back, &mut self.waits)?;
                self.candidates.push(address);
                Operation::Freed { row, device, address, site, requested_ns: time_ns, completed_ns: self.time_ns }
            }
            operation::FREE_REQUESTED => {
                let (row, device, address, site) = self.freed()?;
                Operation::FreeRequested { row, device, address, site, time_ns }
            }
            operation::FREE_COMPLETED => {
                let (row, device, address, site) = self.freed()?;
                self.candidates.push(address);
                Operation::FreeCompleted { row, device, address, site, time_ns }
            }
            operation::REST => self.rest(time_ns)?,
            _ => return Err(self.operations.malformed("an unknown operation")),
        }))
    }

    #[inline(always)]
    fn allocated(&mut self, time_ns: u64) -> Result<Operation, Malformed> {
        let number = self.shape_numbers.u64()?;
        let shape = usize::try_from(number).ok().and_then(|number| self.shapes.get(number));
        let Some(&Shape { device, stream, pool, requested, size }) = shape else {
            return Err(self.shape_numbers.malformed("a shape that the table does not have"));
        };
        let address = match self.places.byte()? {
            0 => {
                self.last_address = self.addresses.delta(self.last_address)?;
                self.last_address
            }
            ago => match self.candidates.get(ago) {
                Some(address) => address,
                None => return Err(self.places.malformed("a place that there was not yet")),
            },
        };
        let site = SiteId(self.sites.u32()?);
        self.candidates.push(address.wrapping_add(size));
        self.allocated.push((address, device));
        let allocated = Allocated { device, address, size, requested, stream, pool, site };
        Ok(Operation::Allocated { allocated, time_ns })
    }

    #[inline(always)]
    fn freed(&mut self) -> Result<(Option<u32>, DeviceId, u64, SiteId), Malformed> {
        let age = self.ages.u64()?;
        let site = SiteId(self.free_sites.u32()?);
        if age == 0 {
            let device = rest::read_device(&mut self.strangers)?;
            self.last_stranger = self.strangers.delta(self.last_stranger)?;
            return Ok((None, device, self.last_stranger, site));
        }
        let row = usize::try_from(age).ok().and_then(|age| self.allocated.len().checked_sub(age));
        match row.and_then(|row| Some((row, self.allocated.get(row)?))) {
            Some((row, &(address, device))) => Ok((Some(row as u32), device, address, site)),
            None => Err(self.ages.malformed("a free of what was not allocated yet")),
        }
    }

    #[inline(never)]
    fn rest(&mut self, time_ns: u64) -> Result<Operation, Malformed> {
        let (device, kind) = rest::read_event(&mut self.rest, &mut self.last_segment)?;
        Ok(Operation::Rest(Event { device, time_ns, kind }))
    }

    /// Nothing may be left of any column.
    #[cold]
    fn end(&self) -> Result<(), Malformed> {
        let columns = [
            &self.operations,
            &self.times,
            &self.waits,
            &self.shape_numbers,
            &self.places,
            &self.addresses,
            &self.sites,
            &self.ages,
            &self.strangers,
            &self.free_sites,
            &self.rest,
        ];
        columns.into_iter().try_for_each(Reader::end)
    }
}

const TOO_MANY: Malformed = Malformed { at: 0, what: "more events than the chunk says" };

/// The time of the next event.
#[inline(always)]
fn later(before_ns: u64, unit: u64, goes_back: bool, units: &mut Reader<'_>) -> Result<u64, Malformed> {
    let units = if goes_back { units.delta(0)? } else { units.u64()? };
    Ok(before_ns.wrapping_add(units.wrapping_mul(unit)))
}

fn read_shapes(mut reader: Reader<'_>) -> Result<Vec<Shape>, Malformed> {
    let mut shapes = Vec::new();
    while reader.remaining() > 0 {
        if shapes.len() == MAX_EVENTS as usize {
            return Err(reader.malformed("more shapes than a chunk may have events"));
        }
        let device = rest::read_device(&mut reader)?;
        let stream = StreamId(reader.u64()?);
        let pool = rest::read_pool(&mut reader)?;
        let requested = reader.size()?;
        let size = reader.delta(requested)?;
        shapes.push(Shape { device, stream, pool, requested, size });
    }
    Ok(shapes)
}
