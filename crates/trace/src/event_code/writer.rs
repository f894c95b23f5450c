//! Writes the events of one chunk.

use std::collections::HashMap;

use super::{COLUMNS, Candidates, FITS, GOES_BACK, Shape, column, operation, rest};
use crate::columns::ColumnsWriter;
use crate::event::{DeviceId, Event, EventKind};
use crate::pack::Packer;
use crate::site::SiteId;
use crate::varint::{self, gcd};

/// A free that was requested by the event before, and may be completed by the next.
#[derive(Clone, Copy, Debug)]
struct Requested {
    device: DeviceId,
    address: u64,
    site: SiteId,
}

/// The events of a chunk, as columns that grow.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventWriter {
    columns: ColumnsWriter<COLUMNS>,
    count: u32,
    /// The time of every operation and, behind that of a freed block, of its completion.
    times_ns: Vec<u64>,
    /// By number, what it is and how often it was met.
    shapes: HashMap<Shape, u64>,
    last_shape: Option<(Shape, u64)>,
    candidates: Candidates,
    /// The blocks that were allocated.
    allocated: Vec<(DeviceId, u64)>,
    /// How many of them came before each event.
    allocated_before: Vec<u32>,
    requested: Option<Requested>,
    last_address: u64,
    last_stranger: u64,
    last_segment: u64,
}

impl EventWriter {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Adds an event. Of a free, `allocated_by` is how many events of this chunk came before the one that allocated the block; `None`
    /// where it was none of them.
    #[inline]
    pub(crate) fn put(&mut self, event: &Event, allocated_by: Option<u64>) {
        self.allocated_before.push(self.allocated.len() as u32);
        self.count += 1;
        let requested = self.requested.take();
        self.times_ns.push(event.time_ns);
        let operation = match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                self.put_shape(Shape { device: event.device, stream, pool, requested, size });
                let place = self.candidates.find(address);
                self.columns.column(column::PLACES).push(place);
                if place == 0 {
                    varint::put_delta(self.columns.column(column::ADDRESSES), self.last_address, address);
                    self.last_address = address;
                }
                varint::put(self.columns.column(column::SITES), u64::from(site.0));
                self.candidates.push(address.wrapping_add(size));
                self.allocated.push((event.device, address));
                operation::ALLOCATED
            }
            EventKind::FreeRequested { address, site } => {
                self.put_free(event.device, address, site, allocated_by);
                self.requested = Some(Requested { device: event.device, address, site });
                operation::FREE_REQUESTED
            }
            EventKind::FreeCompleted { address, site } => {
                self.candidates.push(address);
                if let Some(requested) = requested
                    && requested.device == event.device
                    && requested.address == address
                    && requested.site == site
                    && let Some(last) = self.columns.column(column::OPERATIONS).last_mut()
                {
                    *last = operation::FREED;
                    return;
                }
                self.put_free(event.device, address, site, allocated_by);
                operation::FREE_COMPLETED
            }
            _ => {
                rest::put_event(self.columns.column(column::REST), &mut self.last_segment, event);
                operation::REST
            }
        };
        self.columns.column(column::OPERATIONS).push(operation);
    }

    fn put_shape(&mut self, shape: Shape) {
        let number = match self.last_shape {
            Some((last, number)) if last == shape => number,
            _ => {
                let new = self.shapes.len() as u64;
                let number = *self.shapes.entry(shape).or_insert(new);
                if number == new {
                    put_shape(self.columns.column(column::SHAPE_TABLE), &shape);
                }
                self.last_shape = Some((shape, number));
                number
            }
        };
        varint::put(self.columns.column(column::SHAPES), number);
    }

    fn put_free(&mut self, device: DeviceId, address: u64, site: SiteId, allocated_by: Option<u64>) {
        let index = allocated_by.and_then(|event| self.allocated_before.get(usize::try_from(event).ok()?));
        let age = index.map_or(0, |&index| match self.allocated.get(index as usize) {
            // Full states come from outside, and may say anything of where a block is from.
            Some(&block) if block == (device, address) => self.allocated.len() - index as usize,
            _ => 0,
        });
        let age = age as u64;
        varint::put(self.columns.column(column::AGES), age);
        if age == 0 {
            let strangers = self.columns.column(column::STRANGERS);
            varint::put(strangers, u64::from(device.0));
            varint::put_delta(strangers, self.last_stranger, address);
            self.last_stranger = address;
        }
        varint::put(self.columns.column(column::FREE_SITES), u64::from(site.0));
    }

    /// Appends the payload, and is empty again. `fits` says that no event contradicts what was known.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, fits: bool, packer: &mut Packer) {
        let start = self.times_ns.first().copied().unwrap_or(0);
        let mut unit = 0;
        let mut goes_back = false;
        let mut longest = 0;
        for pair in self.times_ns.windows(2) {
            let difference = pair[1].abs_diff(pair[0]);
            if unit == 0 || !difference.is_multiple_of(unit) {
                unit = gcd(unit, difference);
            }
            longest = longest.max(difference);
            goes_back |= pair[1] < pair[0];
        }
        // Where all times are the same, any number will do; and where one of 64 bits has a sign, only this one.
        if unit == 0 || goes_back && i64::try_from(longest).is_err() {
            unit = 1;
        }
        varint::put(out, start);
        varint::put(out, unit);
        out.push(if goes_back { GOES_BACK } else { 0 } | if fits { FITS } else { 0 });
        self.put_times(start, unit, goes_back);
        self.columns.finish(out, Some(packer));
        self.count = 0;
        self.times_ns.clear();
        self.shapes.clear();
        self.last_shape = None;
        self.candidates.count = 0;
        self.allocated.clear();
        self.allocated_before.clear();
        self.requested = None;
        (self.last_address, self.last_stranger, self.last_segment) = (0, 0, 0);
    }

    fn put_times(&mut self, start: u64, unit: u64, goes_back: bool) {
        let mut last = start;
        let mut times = self.times_ns.iter();
        let operations = std::mem::take(self.columns.column(column::OPERATIONS));
        for &operation in &operations {
            let events = if operation == operation::FREED { 2 } else { 1 };
            for (&time, column) in times.by_ref().take(events).zip([column::TIMES, column::WAITS]) {
                let column = self.columns.column(column);
                if goes_back {
                    let units = (time.wrapping_sub(last) as i64) / unit as i64;
                    varint::put_delta(column, 0, units as u64);
                } else {
                    varint::put(column, (time - last) / unit);
                }
                last = time;
            }
        }
        *self.columns.column(column::OPERATIONS) = operations;
    }
}

fn put_shape(out: &mut Vec<u8>, shape: &Shape) {
    varint::put(out, u64::from(shape.device.0));
    varint::put(out, shape.stream.0);
    super::put_pool(out, shape.pool);
    varint::put_size(out, shape.requested);
    varint::put_delta(out, shape.requested, shape.size);
}
