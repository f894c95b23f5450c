//! Encodes the events of one chunk.

use std::collections::HashMap;

use super::fields::put_pool;
use super::layout::{
    AddressCandidates, AllocationShape, COLUMNS, CONSISTENT, OPTIONAL_COLUMNS, TIME_GOES_BACK, column, operation,
};
use super::other_events::put_event;
use super::relabels::{PlacedRelabel, put_relabels};
use crate::columns::ColumnsWriter;
use crate::compression::Compressor;
use crate::event::{DeviceId, Event, EventKind};
use crate::site::SiteId;
use crate::varint::{self, gcd};

/// Collects the events of a chunk in columns, until [`finish`](Self::finish) writes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventWriter {
    columns: ColumnsWriter<COLUMNS, OPTIONAL_COLUMNS>,
    count: u32,
    /// The time of every event, in nanoseconds.
    times_ns: Vec<u64>,
    /// The number of every shape, in the order of their first use.
    shapes: HashMap<AllocationShape, u64>,
    /// The shape of the last allocation, and its number.
    last_shape: Option<(AllocationShape, u64)>,
    candidates: AddressCandidates,
    /// The blocks that the chunk allocated: device and address.
    allocated: Vec<(DeviceId, u64)>,
    /// For each event, the number of allocations before it.
    allocated_before: Vec<u32>,
    /// The device, address and site of the free that the previous event requested; if the next
    /// event completes it, both events become one operation.
    requested_free: Option<(DeviceId, u64, SiteId)>,
    last_address: u64,
    last_older_block: u64,
    last_segment: u64,
}

impl EventWriter {
    /// Returns the number of events added since the last [`finish`](Self::finish).
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Makes the next event a separate operation, because a relabel precedes it.
    pub(crate) fn separate(&mut self) {
        self.requested_free = None;
    }

    /// Adds the next event of the chunk.
    ///
    /// For a free, `allocation_offset` is the index in this chunk of the event that allocated the
    /// block; `None` if the block is older than the chunk.
    #[inline]
    pub(crate) fn put(&mut self, event: &Event, allocation_offset: Option<u64>) {
        self.allocated_before.push(self.allocated.len() as u32);
        self.count += 1;
        let requested_free = self.requested_free.take();
        self.times_ns.push(event.time_ns);
        let operation = match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                self.put_shape(AllocationShape { device: event.device, stream, pool, requested, size });
                let candidate = self.candidates.find(address);
                self.columns.column(column::ADDRESS_CANDIDATES).push(candidate);
                if candidate == 0 {
                    varint::put_delta(self.columns.column(column::ADDRESSES), self.last_address, address);
                    self.last_address = address;
                }
                varint::put(self.columns.column(column::SITES), u64::from(site.0));
                self.candidates.push(address.wrapping_add(size));
                self.allocated.push((event.device, address));
                operation::ALLOCATED
            }
            EventKind::FreeRequested { address, site } => {
                self.put_free(event.device, address, site, allocation_offset);
                self.requested_free = Some((event.device, address, site));
                operation::FREE_REQUESTED
            }
            EventKind::FreeCompleted { address, site } => {
                self.candidates.push(address);
                if requested_free == Some((event.device, address, site))
                    && let Some(last) = self.columns.column(column::OPERATIONS).last_mut()
                {
                    *last = operation::FREED;
                    return;
                }
                self.put_free(event.device, address, site, allocation_offset);
                operation::FREE_COMPLETED
            }
            _ => {
                put_event(self.columns.column(column::OTHER_EVENTS), &mut self.last_segment, event);
                operation::OTHER
            }
        };
        self.columns.column(column::OPERATIONS).push(operation);
    }

    /// Appends the number of an allocation's shape, after adding the shape to the chunk's table if
    /// it is new.
    fn put_shape(&mut self, shape: AllocationShape) {
        let number = match self.last_shape {
            Some((last, number)) if last == shape => number,
            _ => {
                let new = self.shapes.len() as u64;
                let number = *self.shapes.entry(shape).or_insert(new);
                if number == new {
                    let table = self.columns.column(column::SHAPE_TABLE);
                    varint::put(table, u64::from(shape.device.0));
                    varint::put(table, shape.stream.0);
                    put_pool(table, shape.pool);
                    varint::put_size(table, shape.requested);
                    varint::put_delta(table, shape.requested, shape.size);
                }
                self.last_shape = Some((shape, number));
                number
            }
        };
        varint::put(self.columns.column(column::SHAPES), number);
    }

    /// Appends the fields of a free. `allocation_offset` is the index (from 0) in this chunk of the
    /// event that allocated the block; `None` if the block is older than the chunk.
    fn put_free(&mut self, device: DeviceId, address: u64, site: SiteId, allocation_offset: Option<u64>) {
        let index = allocation_offset.and_then(|event| self.allocated_before.get(usize::try_from(event).ok()?));
        let age = index.map_or(0, |&index| match self.allocated.get(index as usize) {
            // A full state from outside may contain any `since_event`, so it is checked.
            Some(&block) if block == (device, address) => self.allocated.len() - index as usize,
            _ => 0,
        });
        let age = age as u64;
        varint::put(self.columns.column(column::ALLOCATION_AGES), age);
        if age == 0 {
            let older_blocks = self.columns.column(column::OLDER_BLOCKS);
            varint::put(older_blocks, u64::from(device.0));
            varint::put_delta(older_blocks, self.last_older_block, address);
            self.last_older_block = address;
        }
        varint::put(self.columns.column(column::FREE_SITES), u64::from(site.0));
    }

    /// Appends the payload of the chunk to `out` and clears the writer. `is_consistent` is true if
    /// no event contradicts the memory state before it. `relabels` are the chunk's relabels;
    /// `earlier` is the number of relabels since the last event that earlier chunks contain.
    pub(crate) fn finish(
        &mut self,
        out: &mut Vec<u8>,
        is_consistent: bool,
        (earlier, relabels): (u64, &[PlacedRelabel]),
        compressor: &mut Compressor,
    ) {
        let start = self.times_ns.first().copied().unwrap_or(0);
        let mut unit = 0;
        let mut time_goes_back = false;
        let mut longest = 0;
        for pair in self.times_ns.windows(2) {
            let difference = pair[1].abs_diff(pair[0]);
            if unit == 0 || !difference.is_multiple_of(unit) {
                unit = gcd(unit, difference);
            }
            longest = longest.max(difference);
            time_goes_back |= pair[1] < pair[0];
        }
        // If all times are equal, any unit works. A signed difference above 63 bits needs unit 1.
        if unit == 0 || time_goes_back && i64::try_from(longest).is_err() {
            unit = 1;
        }
        varint::put(out, start);
        varint::put(out, unit);
        out.push(if time_goes_back { TIME_GOES_BACK } else { 0 } | if is_consistent { CONSISTENT } else { 0 });
        self.put_times(start, unit, time_goes_back);
        put_relabels(&mut self.columns, start, earlier, relabels);
        self.columns.finish(out, Some(compressor));
        self.count = 0;
        self.times_ns.clear();
        self.shapes.clear();
        self.last_shape = None;
        self.candidates.clear();
        self.allocated.clear();
        self.allocated_before.clear();
        self.requested_free = None;
        (self.last_address, self.last_older_block, self.last_segment) = (0, 0, 0);
    }

    /// Appends the times of all events, as differences in steps of `unit` nanoseconds; the first to
    /// `start` (nanoseconds). With `time_goes_back`, differences are signed.
    fn put_times(&mut self, start: u64, unit: u64, time_goes_back: bool) {
        let mut last = start;
        let mut times = self.times_ns.iter();
        let operations = std::mem::take(self.columns.column(column::OPERATIONS));
        for &operation in &operations {
            let events = if operation == operation::FREED { 2 } else { 1 };
            for (&time, column) in times.by_ref().take(events).zip([column::TIMES, column::COMPLETION_DELAYS]) {
                let column = self.columns.column(column);
                if time_goes_back {
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
