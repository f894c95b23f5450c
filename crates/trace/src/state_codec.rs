//! Encodes a memory state, and decodes it.
//!
//! ```text
//! payload  | event | time | unit | columns
//! ```
//!
//! Equal states have equal bytes before compression, so that [`digest`] can hash them. `unit` is a
//! number of nanoseconds that divides the ages of all blocks. Addresses are stored as distances
//! from the end of the previous segment or block, starts as differences to the state's own moment
//! and time.

use std::collections::{BTreeMap, HashMap};

use crate::address_map::AddressMap;
use crate::columns::{Columns, ColumnsWriter};
use crate::compression::{Compressor, Decompressor};
use crate::counters::{Counters, MemorySample};
use crate::device_state::DeviceState;
use crate::event::{DeviceId, PoolKey, StreamId};
use crate::event_codec::{put_pool, read_device, read_pool};
use crate::memory_state::MemoryState;
use crate::segment::{Block, Segment, is_range};
use crate::site::SiteId;
use crate::varint::{self, PayloadError, Reader, gcd};

/// Number of columns of a full state, including the column of relabeled blocks.
const COLUMNS: usize = 9;
/// Number of columns of a full state that older readers skip: the column of relabeled blocks.
const OPTIONAL_COLUMNS: usize = 1;
/// Maximum number of decompressed bytes that a reader accepts in the columns of a full state; more
/// is an error.
const MAX_COLUMNS_LEN: usize = 32 << 20;
/// Maximum number of segments and blocks that a reader accepts in a full state; more is an error.
/// They take 100 MB of memory. Real programs have some thousands.
const MAX_RANGES: u64 = 1 << 20;

/// Returns true if readers accept the state: it has at most [`MAX_RANGES`] segments and blocks.
/// Larger states are not written.
pub(crate) fn is_readable(state: &MemoryState) -> bool {
    let ranges = |device: &DeviceState| (device.blocks.len() + device.segments.len()) as u64;
    state.devices.values().map(ranges).sum::<u64>() <= MAX_RANGES
}

mod column {
    /// Column id in a full state. Per device: its number, the numbers of events, failed requests
    /// and inconsistencies, whether it has a memory sample, the sample, and the numbers of segments
    /// and blocks.
    pub(super) const DEVICES: u8 = 0;
    /// Column id in a full state. Per segment: distance from the end of the previous one in bytes,
    /// size, stream, pool, whether it is expandable, site, and events since it was created.
    pub(super) const SEGMENTS: u8 = 1;
    /// Column id in a full state. Per block: bytes from the end of the previous block to its
    /// address.
    pub(super) const DISTANCES: u8 = 2;
    /// Column id in a full state. Per block: the number (from 0) of its shape in [`SHAPE_TABLE`].
    pub(super) const SHAPES: u8 = 3;
    /// Column id in a full state. Per block: the number of the site at which it was allocated.
    pub(super) const SITES: u8 = 4;
    /// Column id in a full state. Per block: events since it was allocated.
    pub(super) const EVENTS_SINCE: u8 = 5;
    /// Column id in a full state. Per block: time since it was allocated, in the unit that the
    /// state begins with.
    pub(super) const TIMES_SINCE: u8 = 6;
    /// Column id in a full state. Per shape (the fields that many blocks have in common): stream,
    /// pool, requested size, size − requested size, pending free.
    pub(super) const SHAPE_TABLE: u8 = 7;
    /// Column in a full state, with id 64. Per relabeled block: the number of blocks between the
    /// previous one and this one, and the number of its site.
    pub(super) const LABELS: u8 = 8;
}

/// The fields that many blocks of a full state have in common, stored once in a table: everything
/// but address, site, moment and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BlockShape {
    stream: StreamId,
    pool: PoolKey,
    requested: u64,
    size: u64,
    pending_free: bool,
}

/// Appends the payload of a full state to `out`; its columns are compressed if there is a
/// compressor.
pub(crate) fn put_state(out: &mut Vec<u8>, state: &MemoryState, compressor: Option<&mut Compressor>) {
    let mut columns = ColumnsWriter::<COLUMNS, OPTIONAL_COLUMNS>::default();
    let blocks = || state.devices.values().flat_map(|device| device.blocks.iter());
    let unit = blocks().fold(0, |unit, block| gcd(unit, state.time_ns.wrapping_sub(block.since_ns))).max(1);
    varint::put(out, state.event);
    varint::put(out, state.time_ns);
    varint::put(out, unit);
    let mut shapes = HashMap::new();
    let mut unlabeled = 0;
    for (id, device) in &state.devices {
        put_device(columns.column(column::DEVICES), id.0, device);
        put_segments(columns.column(column::SEGMENTS), state, device);
        put_blocks(&mut columns, &mut shapes, state, device, unit);
        put_labels(columns.column(column::LABELS), &mut unlabeled, device);
    }
    columns.finish(out, compressor);
}

/// Appends the event counts of the device with id `number`, its last memory sample, and its numbers
/// of segments and blocks.
fn put_device(out: &mut Vec<u8>, number: u16, device: &DeviceState) {
    varint::put(out, u64::from(number));
    for count in [device.events, device.ooms, device.inconsistencies] {
        varint::put(out, count);
    }
    out.push(u8::from(device.sample.is_some()));
    if let Some(sample) = device.sample {
        for bytes in sample.to_array() {
            varint::put_size(out, bytes);
        }
    }
    varint::put(out, device.segments.len() as u64);
    varint::put(out, device.blocks.len() as u64);
}

/// Appends a device's segments in address order; moments are stored as differences to the moment of
/// `state`.
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

/// Appends the relabeled blocks of a device. `unlabeled` is the number of blocks since the last
/// relabeled one, over all devices.
fn put_labels(out: &mut Vec<u8>, unlabeled: &mut u64, device: &DeviceState) {
    if device.allocation_sites.is_empty() {
        *unlabeled += device.blocks.len() as u64;
        return;
    }
    for block in device.blocks.iter() {
        if device.allocation_sites.contains_key(&block.address) {
            varint::put(out, std::mem::take(unlabeled));
            varint::put(out, u64::from(block.site.0));
        } else {
            *unlabeled += 1;
        }
    }
}

/// Appends a device's blocks in address order. A new shape gets the next number in `shapes`; times
/// are stored as steps of `unit` nanoseconds before the time of `state`.
fn put_blocks(
    columns: &mut ColumnsWriter<COLUMNS, OPTIONAL_COLUMNS>,
    shapes: &mut HashMap<BlockShape, u64>,
    state: &MemoryState,
    device: &DeviceState,
    unit: u64,
) {
    let mut end = 0;
    for block in device.blocks.iter() {
        let &Block { stream, pool, requested, size, pending_free, .. } = block;
        varint::put_size(columns.column(column::DISTANCES), block.address - end);
        let new = shapes.len() as u64;
        let number = *shapes.entry(BlockShape { stream, pool, requested, size, pending_free }).or_insert(new);
        varint::put(columns.column(column::SHAPES), number);
        if number == new {
            let table = columns.column(column::SHAPE_TABLE);
            varint::put(table, stream.0);
            put_pool(table, pool);
            varint::put_size(table, requested);
            varint::put_size(table, size - requested);
            table.push(u8::from(pending_free));
        }
        varint::put(columns.column(column::SITES), u64::from(device.allocation_site(block).0));
        varint::put_delta(columns.column(column::EVENTS_SINCE), block.since_event, state.event);
        varint::put(columns.column(column::TIMES_SINCE), state.time_ns.wrapping_sub(block.since_ns) / unit);
        end = block.end();
    }
}

/// Reads the payload of a full state, which [`put_state`] wrote: the memory of all devices, or with
/// `only` of one device, which takes a fraction of the time.
pub(crate) fn read_state(
    mut reader: Reader<'_>,
    decompressor: &mut Decompressor,
    only: Option<DeviceId>,
) -> Result<MemoryState, PayloadError> {
    let mut state = MemoryState { event: reader.u64()?, time_ns: reader.u64()?, devices: BTreeMap::new() };
    let unit = reader.u64()?;
    let columns = Columns::<COLUMNS, OPTIONAL_COLUMNS>::read(&mut reader, decompressor, MAX_COLUMNS_LEN)?;
    let mut devices = columns.column(column::DEVICES);
    let mut segments = columns.column(column::SEGMENTS);
    let mut blocks = BlockReader {
        shapes: read_shapes(columns.column(column::SHAPE_TABLE))?,
        distances: columns.column(column::DISTANCES),
        shape_numbers: columns.column(column::SHAPES),
        sites: columns.column(column::SITES),
        events_since: columns.column(column::EVENTS_SINCE),
        times_since: columns.column(column::TIMES_SINCE),
        unit,
        labels: columns.column(column::LABELS),
        label: None,
    };
    blocks.next_label(0)?;
    let mut ranges = 0u64;
    while devices.remaining() > 0 {
        let id = read_device(&mut devices)?;
        let mut device = DeviceState {
            events: devices.u64()?,
            ooms: devices.u64()?,
            inconsistencies: devices.u64()?,
            ..DeviceState::default()
        };
        if read_flag(&mut devices)? {
            device.sample = Some(MemorySample::from_array([devices.size()?, devices.size()?, devices.size()?]));
        }
        let (segment_count, block_count) = (devices.u64()?, devices.u64()?);
        ranges = ranges.saturating_add(segment_count).saturating_add(block_count);
        if ranges > MAX_RANGES {
            return Err(devices.payload_error("more segments and blocks than a state may have"));
        }
        device.segments = read_segments(&mut segments, segment_count, &state, &mut device.counters)?;
        if only.is_some_and(|only| only != id) {
            blocks.skip(block_count)?;
            continue;
        }
        blocks.read(block_count, &state, &mut device)?;
        if state.devices.insert(id, device).is_some() {
            return Err(devices.payload_error("a device appears twice"));
        }
    }
    segments.end()?;
    blocks.end()?;
    Ok(state)
}

/// Reads a byte that must be 0 (returns false) or 1 (returns true).
fn read_flag(reader: &mut Reader<'_>) -> Result<bool, PayloadError> {
    let flag = reader.byte()?;
    if flag > 1 { Err(reader.payload_error("flag is neither 0 nor 1")) } else { Ok(flag == 1) }
}

/// Reads the table of block shapes of a full state.
fn read_shapes(mut reader: Reader<'_>) -> Result<Vec<BlockShape>, PayloadError> {
    let mut shapes = Vec::new();
    while reader.remaining() > 0 {
        let stream = StreamId(reader.u64()?);
        let pool = read_pool(&mut reader)?;
        let requested = reader.size()?;
        let size = requested.checked_add(reader.size()?);
        let size = size.ok_or_else(|| reader.payload_error("size above 64 bits"))?;
        shapes.push(BlockShape { stream, pool, requested, size, pending_free: read_flag(&mut reader)? });
    }
    Ok(shapes)
}

/// Returns the address of a range of `size` bytes that begins `distance` bytes after `end`. Returns
/// an error at the position of `reader` if the range exceeds the address space.
fn range_address(reader: &mut Reader<'_>, end: u64, distance: u64, size: u64) -> Result<u64, PayloadError> {
    let address = end.checked_add(distance).filter(|&address| is_range(address, size));
    address.ok_or_else(|| reader.payload_error("empty memory range, or one that ends above 2⁶⁴"))
}

/// Reads `count` segments of one device, which [`put_segments`] wrote, and adds their sizes to the
/// reserved bytes in `counters`.
fn read_segments(
    reader: &mut Reader<'_>,
    count: u64,
    state: &MemoryState,
    counters: &mut Counters,
) -> Result<AddressMap<Segment>, PayloadError> {
    let mut end = 0;
    (0..count)
        .map(|_| {
            let (distance, size) = (reader.size()?, reader.size()?);
            let segment = Segment {
                address: range_address(reader, end, distance, size)?,
                size,
                stream: StreamId(reader.u64()?),
                pool: read_pool(reader)?,
                expandable: read_flag(reader)?,
                site: SiteId(reader.u32()?),
                since_event: state.event.wrapping_sub(reader.delta(0)?),
            };
            end = segment.end();
            // A hostile recording may contain any sizes.
            counters.reserved = counters.reserved.saturating_add(size);
            Ok(segment)
        })
        .collect()
}

/// Reads the blocks of a full state from their columns.
struct BlockReader<'a> {
    shapes: Vec<BlockShape>,
    distances: Reader<'a>,
    shape_numbers: Reader<'a>,
    sites: Reader<'a>,
    events_since: Reader<'a>,
    times_since: Reader<'a>,
    unit: u64,
    /// The column of relabeled blocks.
    labels: Reader<'a>,
    /// The next relabeled block: the number of blocks before it that are not read yet, and its
    /// site.
    label: Option<(u64, SiteId)>,
}

impl BlockReader<'_> {
    /// Reads the next relabeled block. `before` is the number of unread blocks before it, in
    /// addition to the number that the column states.
    #[inline(never)]
    fn next_label(&mut self, before: u64) -> Result<(), PayloadError> {
        self.label = None;
        if self.labels.remaining() > 0 {
            self.label = Some((self.labels.u64()?.saturating_add(before), SiteId(self.labels.u32()?)));
        }
        Ok(())
    }

    /// Reads the next `count` blocks, all blocks of one device, into `device`, and adds their sizes
    /// to its counters.
    fn read(&mut self, count: u64, state: &MemoryState, device: &mut DeviceState) -> Result<(), PayloadError> {
        // A block takes at least one byte of each column.
        let mut blocks = AddressMap::with_capacity(count.min(self.distances.remaining() as u64) as usize);
        let mut end = 0;
        for index in 0..count {
            let mut block = self.block(end, state)?;
            if let Some((at, site)) = self.label
                && at == index
            {
                let allocation_site = std::mem::replace(&mut block.site, site);
                if allocation_site != site {
                    device.allocation_sites.insert(block.address, allocation_site.0);
                }
                self.next_label(index + 1)?;
            }
            end = block.end();
            device.counters.add_block(block.size, block.requested, block.pending_free);
            blocks.push(block);
        }
        device.blocks = blocks;
        self.label = self.label.map(|(at, site)| (at - count, site));
        Ok(())
    }

    /// Skips the next `count` blocks without decoding them.
    fn skip(&mut self, count: u64) -> Result<(), PayloadError> {
        while let Some((at, _)) = self.label.filter(|&(at, _)| at < count) {
            self.next_label(at + 1)?;
        }
        self.label = self.label.map(|(at, site)| (at - count, site));
        let columns = [
            &mut self.distances,
            &mut self.shape_numbers,
            &mut self.sites,
            &mut self.events_since,
            &mut self.times_since,
        ];
        columns.into_iter().try_for_each(|column| column.skip(count))
    }

    /// Reads the next block; `end` is the address after the last byte of the block before it.
    fn block(&mut self, end: u64, state: &MemoryState) -> Result<Block, PayloadError> {
        let distance = self.distances.size()?;
        let number = self.shape_numbers.u64()?;
        let shape = usize::try_from(number).ok().and_then(|number| self.shapes.get(number));
        let Some(&BlockShape { stream, pool, requested, size, pending_free }) = shape else {
            return Err(self.shape_numbers.payload_error("shape number outside of the table"));
        };
        Ok(Block {
            address: range_address(&mut self.distances, end, distance, size)?,
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

    /// Returns an error unless every column of the full state was read to its end.
    fn end(&self) -> Result<(), PayloadError> {
        if self.label.is_some() {
            return Err(self.labels.payload_error("relabeled block after the last block"));
        }
        [&self.distances, &self.shape_numbers, &self.sites, &self.events_since, &self.times_since]
            .into_iter()
            .try_for_each(Reader::end)
    }
}

/// Returns a 64-bit hash (XXH3) of a memory state, to compare states of two recordings or programs.
///
/// Equal states have equal digests on every machine; different states almost never have.
#[must_use]
pub fn digest(state: &MemoryState) -> u64 {
    let mut bytes = Vec::new();
    put_state(&mut bytes, state, None);
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
