//! A memory state as bytes, and back. The same state gives the same bytes before they are packed, so that they serve for [`digest`] too.
//!
//! ```text
//! payload  | event | time | unit | columns
//! ```
//!
//! `unit` is the number of nanoseconds that the ages of all blocks are multiples of. Addresses are differences from the end of the one before,
//! ages differences from the state's own moment.

use std::collections::{BTreeMap, HashMap};

use crate::address_map::AddressMap;
use crate::columns::{Columns, ColumnsWriter};
use crate::device_state::DeviceState;
use crate::event::{Pool, StreamId};
use crate::event_code::{put_pool, read_device, read_pool};
use crate::pack::{Packer, Unpacker};
use crate::site::SiteId;
use crate::state::{Block, Counters, MemorySample, MemoryState, Segment, is_range};
use crate::varint::{self, Malformed, Reader, gcd};

const COLUMNS: usize = 8;
/// The most unpacked bytes of a state.
const MAX_COLUMNS_LEN: usize = 32 << 20;
/// The most segments and blocks of a state, which take 100 MB of memory. Real programs have some thousands, and a GPU of 140 GB could have so
/// many of 140 KB.
const MAX_RANGES: u64 = 1 << 20;

/// Whether a reader takes the state, of which more segments and blocks than that are refused.
pub(crate) fn is_readable(state: &MemoryState) -> bool {
    let ranges = |device: &DeviceState| (device.blocks.len() + device.segments.len()) as u64;
    state.devices.values().map(ranges).sum::<u64>() <= MAX_RANGES
}

mod column {
    /// Of a device: number, events, failed requests, misfits, [sample], segments, blocks.
    pub(super) const DEVICES: u8 = 0;
    /// Of a segment: address, size, stream, pool, expandable, site, events since.
    pub(super) const SEGMENTS: u8 = 1;
    /// Of a block: from the end of the one before to its address.
    pub(super) const DISTANCES: u8 = 2;
    /// Of a block: its shape's number in the table.
    pub(super) const SHAPES: u8 = 3;
    /// Of a block: its site.
    pub(super) const SITES: u8 = 4;
    /// Of a block: events since it was allocated.
    pub(super) const EVENTS_SINCE: u8 = 5;
    /// Of a block: units of time since it was allocated.
    pub(super) const TIMES_SINCE: u8 = 6;
    /// The table of shapes: stream, pool, requested size, size less requested, pending free.
    pub(super) const SHAPE_TABLE: u8 = 7;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    stream: StreamId,
    pool: Pool,
    requested: u64,
    size: u64,
    pending_free: bool,
}

/// Appends the state; packed where there is something to do it with.
pub(crate) fn put_state(out: &mut Vec<u8>, state: &MemoryState, packer: Option<&mut Packer>) {
    let mut columns = ColumnsWriter::<COLUMNS>::default();
    let blocks = || state.devices.values().flat_map(|device| device.blocks.iter());
    let unit = blocks().fold(0, |unit, block| gcd(unit, state.time_ns.wrapping_sub(block.since_ns))).max(1);
    varint::put(out, state.event);
    varint::put(out, state.time_ns);
    varint::put(out, unit);
    let mut shapes = HashMap::new();
    for (id, device) in &state.devices {
        put_device(columns.column(column::DEVICES), id.0, device);
        put_segments(columns.column(column::SEGMENTS), state, device);
        put_blocks(&mut columns, &mut shapes, state, device, unit);
    }
    columns.finish(out, packer);
}

fn put_device(out: &mut Vec<u8>, number: u16, device: &DeviceState) {
    varint::put(out, u64::from(number));
    for count in [device.events, device.ooms, device.misfits] {
        varint::put(out, count);
    }
    out.push(u8::from(device.sample.is_some()));
    if let Some(sample) = device.sample {
        for bytes in [sample.used_by_context, sample.used_by_others, sample.free] {
            varint::put_size(out, bytes);
        }
    }
    varint::put(out, device.segments.len() as u64);
    varint::put(out, device.blocks.len() as u64);
}

fn put_segments(out: &mut Vec<u8>, state: &MemoryState, device: &DeviceState) {
    let mut end = 0;
    for segment in device.segments.iter() {
        varint::put_size(out, segment.address - end);
        varint::put_size(out, segment.size);
        varint::put(out, segment.stream.0);
        put_pool(out, segment.pool);
        out.push(u8::from(segment.expandable));
        varint::put(out, u64::from(segment.site.0));
        varint::put_delta(out, segment.since_event, state.event);
        end = segment.end();
    }
}

fn put_blocks(
    columns: &mut ColumnsWriter<COLUMNS>,
    shapes: &mut HashMap<Shape, u64>,
    state: &MemoryState,
    device: &DeviceState,
    unit: u64,
) {
    let mut end = 0;
    for block in device.blocks.iter() {
        let &Block { stream, pool, requested, size, pending_free, .. } = block;
        varint::put_size(columns.column(column::DISTANCES), block.address - end);
        let new = shapes.len() as u64;
        let number = *shapes.entry(Shape { stream, pool, requested, size, pending_free }).or_insert(new);
        varint::put(columns.column(column::SHAPES), number);
        if number == new {
            let table = columns.column(column::SHAPE_TABLE);
            varint::put(table, stream.0);
            put_pool(table, pool);
            varint::put_size(table, requested);
            varint::put_size(table, size - requested);
            table.push(u8::from(pending_free));
        }
        varint::put(columns.column(column::SITES), u64::from(block.site.0));
        varint::put_delta(columns.column(column::EVENTS_SINCE), block.since_event, state.event);
        varint::put(columns.column(column::TIMES_SINCE), state.time_ns.wrapping_sub(block.since_ns) / unit);
        end = block.end();
    }
}

/// Reads what [`put_state`] wrote.
pub(crate) fn read_state(mut reader: Reader<'_>, unpacker: &mut Unpacker) -> Result<MemoryState, Malformed> {
    let mut state = MemoryState { event: reader.u64()?, time_ns: reader.u64()?, devices: BTreeMap::new() };
    let unit = reader.u64()?;
    let columns = Columns::<COLUMNS>::read(&mut reader, unpacker, MAX_COLUMNS_LEN)?;
    let mut devices = columns.column(column::DEVICES);
    let mut segments = columns.column(column::SEGMENTS);
    let mut blocks = BlockReader {
        shapes: read_shapes(columns.column(column::SHAPE_TABLE))?,
        distances: columns.column(column::DISTANCES),
        numbers: columns.column(column::SHAPES),
        sites: columns.column(column::SITES),
        events_since: columns.column(column::EVENTS_SINCE),
        times_since: columns.column(column::TIMES_SINCE),
        unit,
    };
    let mut ranges = 0u64;
    while devices.remaining() > 0 {
        let id = read_device(&mut devices)?;
        let mut device = DeviceState {
            events: devices.u64()?,
            ooms: devices.u64()?,
            misfits: devices.u64()?,
            ..DeviceState::default()
        };
        if flag(&mut devices)? {
            device.sample = Some(MemorySample {
                used_by_context: devices.size()?,
                used_by_others: devices.size()?,
                free: devices.size()?,
            });
        }
        let (segment_count, block_count) = (devices.u64()?, devices.u64()?);
        ranges = ranges.saturating_add(segment_count).saturating_add(block_count);
        if ranges > MAX_RANGES {
            return Err(devices.malformed("more segments and blocks than a state may have"));
        }
        device.segments = read_segments(&mut segments, segment_count, &state, &mut device.counters)?;
        device.blocks = blocks.read(block_count, &state, &mut device.counters)?;
        if state.devices.insert(id, device).is_some() {
            return Err(devices.malformed("a device that was there already"));
        }
    }
    segments.end()?;
    blocks.end()?;
    Ok(state)
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.malformed("neither yes nor no")),
    }
}

fn read_shapes(mut reader: Reader<'_>) -> Result<Vec<Shape>, Malformed> {
    let mut shapes = Vec::new();
    while reader.remaining() > 0 {
        let stream = StreamId(reader.u64()?);
        let pool = read_pool(&mut reader)?;
        let requested = reader.size()?;
        let size = requested.checked_add(reader.size()?);
        let size = size.ok_or_else(|| reader.malformed("a size of more than 64 bits"))?;
        shapes.push(Shape { stream, pool, requested, size, pending_free: flag(&mut reader)? });
    }
    Ok(shapes)
}

/// The address of the next range.
fn address(reader: &mut Reader<'_>, end: u64, distance: u64, size: u64) -> Result<u64, Malformed> {
    let address = end.checked_add(distance).filter(|&address| is_range(address, size));
    address.ok_or_else(|| reader.malformed("a range of memory that is none"))
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

fn read_segments(
    reader: &mut Reader<'_>,
    count: u64,
    state: &MemoryState,
    counters: &mut Counters,
) -> Result<AddressMap<Segment>, Malformed> {
    let mut end = 0;
    (0..count)
        .map(|_| {
            let (distance, size) = (reader.size()?, reader.size()?);
            let segment = Segment {
                address: address(reader, end, distance, size)?,
                size,
                stream: StreamId(reader.u64()?),
                pool: read_pool(reader)?,
                expandable: flag(reader)?,
                site: SiteId(reader.u32()?),
                since_event: state.event.wrapping_sub(reader.delta(0)?),
            };
            end = segment.end();
            add(&mut counters.reserved, size);
            Ok(segment)
        })
        .collect()
}

struct BlockReader<'a> {
    shapes: Vec<Shape>,
    distances: Reader<'a>,
    numbers: Reader<'a>,
    sites: Reader<'a>,
    events_since: Reader<'a>,
    times_since: Reader<'a>,
    unit: u64,
}

impl BlockReader<'_> {
    fn read(
        &mut self,
        count: u64,
        state: &MemoryState,
        counters: &mut Counters,
    ) -> Result<AddressMap<Block>, Malformed> {
        let mut end = 0;
        (0..count)
            .map(|_| {
                let block = self.block(end, state)?;
                end = block.end();
                add(&mut counters.active, block.size);
                add(&mut counters.requested, block.requested);
                if !block.pending_free {
                    add(&mut counters.allocated, block.size);
                }
                Ok(block)
            })
            .collect()
    }

    fn block(&mut self, end: u64, state: &MemoryState) -> Result<Block, Malformed> {
        let distance = self.distances.size()?;
        let number = self.numbers.u64()?;
        let shape = usize::try_from(number).ok().and_then(|number| self.shapes.get(number));
        let Some(&Shape { stream, pool, requested, size, pending_free }) = shape else {
            return Err(self.numbers.malformed("a shape that the table does not have"));
        };
        Ok(Block {
            address: address(&mut self.distances, end, distance, size)?,
            size,
            requested,
            stream,
            pool,
            site: SiteId(self.sites.u32()?),
            pending_free,
            since_event: state.event.wrapping_sub(self.events_since.delta(0)?),
            since_ns: state.time_ns.wrapping_sub(self.times_since.u64()?.wrapping_mul(self.unit)),
        })
    }

    fn end(&self) -> Result<(), Malformed> {
        [&self.distances, &self.numbers, &self.sites, &self.events_since, &self.times_since]
            .into_iter()
            .try_for_each(Reader::end)
    }
}

/// A number for a state: the same state gives the same one on every machine, and two different states hardly ever do.
#[must_use]
pub fn digest(state: &MemoryState) -> u64 {
    let mut bytes = Vec::new();
    put_state(&mut bytes, state, None);
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
