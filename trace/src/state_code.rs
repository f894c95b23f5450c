//! A memory state as bytes, and back. The same state gives the same bytes, so that they serve for [`digest`] too.
//!
//! ```text
//! event | time | devices | per device:
//!   number | events | ooms | misfits | [sample]
//!   segments | per segment: address | size | stream | pool | expandable | site | since event
//!   blocks   | per block:   address | size | requested | stream | pool | pending | site | since event | since time
//! ```
//!
//! Addresses are differences from the end of the one before, ages differences from the state's own moment.

use std::collections::BTreeMap;

use crate::event::StreamId;
use crate::event_code::{put_pool, read_device, read_pool};
use crate::site::SiteId;
use crate::state::{Block, Counters, DeviceState, MemorySample, MemoryState, Segment, is_range};
use crate::varint::{self, Malformed, Reader};

const MIN_SEGMENT_LEN: usize = 7;
const MIN_BLOCK_LEN: usize = 9;

/// Appends the state.
pub(crate) fn put_state(out: &mut Vec<u8>, state: &MemoryState) {
    varint::put(out, state.event);
    varint::put(out, state.time_ns);
    varint::put(out, state.devices.len() as u64);
    for (id, device) in &state.devices {
        varint::put(out, u64::from(id.0));
        for count in [device.events, device.ooms, device.misfits] {
            varint::put(out, count);
        }
        out.push(u8::from(device.sample.is_some()));
        if let Some(sample) = device.sample {
            for bytes in [sample.used_by_context, sample.used_by_others, sample.free] {
                varint::put_size(out, bytes);
            }
        }
        put_segments(out, state, device);
        put_blocks(out, state, device);
    }
}

fn put_segments(out: &mut Vec<u8>, state: &MemoryState, device: &DeviceState) {
    varint::put(out, device.segments.len() as u64);
    let mut end = 0;
    for segment in device.segments.values() {
        varint::put_delta(out, end, segment.address);
        varint::put_size(out, segment.size);
        varint::put(out, segment.stream.0);
        put_pool(out, segment.pool);
        out.push(u8::from(segment.expandable));
        varint::put(out, u64::from(segment.site.0));
        varint::put_delta(out, segment.since_event, state.event);
        end = segment.end();
    }
}

fn put_blocks(out: &mut Vec<u8>, state: &MemoryState, device: &DeviceState) {
    varint::put(out, device.blocks.len() as u64);
    let mut end = 0;
    for block in device.blocks.values() {
        varint::put_delta(out, end, block.address);
        varint::put_size(out, block.size);
        varint::put_delta(out, block.requested, block.size);
        varint::put(out, block.stream.0);
        put_pool(out, block.pool);
        out.push(u8::from(block.pending_free));
        varint::put(out, u64::from(block.site.0));
        varint::put_delta(out, block.since_event, state.event);
        varint::put_delta(out, block.since_ns, state.time_ns);
        end = block.end();
    }
}

/// Reads what [`put_state`] wrote.
pub(crate) fn read_state(payload: &[u8]) -> Result<MemoryState, Malformed> {
    let mut reader = Reader::new(payload);
    let mut state = MemoryState { event: reader.u64()?, time_ns: reader.u64()?, devices: BTreeMap::new() };
    for _ in 0..reader.count(1)? {
        let id = read_device(&mut reader)?;
        let mut device = DeviceState {
            events: reader.u64()?,
            ooms: reader.u64()?,
            misfits: reader.u64()?,
            ..DeviceState::default()
        };
        if flag(&mut reader)? {
            device.sample = Some(MemorySample {
                used_by_context: reader.size()?,
                used_by_others: reader.size()?,
                free: reader.size()?,
            });
        }
        device.segments = read_segments(&mut reader, &state, &mut device.counters)?;
        device.blocks = read_blocks(&mut reader, &state, &mut device.counters)?;
        if state.devices.insert(id, device).is_some() {
            return Err(reader.malformed("a device that was there already"));
        }
    }
    reader.end()?;
    Ok(state)
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.malformed("neither yes nor no")),
    }
}

/// The address and size of the next range, which must lie behind the last.
fn read_range(reader: &mut Reader<'_>, end: u64) -> Result<(u64, u64), Malformed> {
    let address = reader.delta(end)?;
    let size = reader.size()?;
    if address < end || !is_range(address, size) {
        return Err(reader.malformed("ranges of memory that are not in order"));
    }
    Ok((address, size))
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

fn read_segments(
    reader: &mut Reader<'_>,
    state: &MemoryState,
    counters: &mut Counters,
) -> Result<BTreeMap<u64, Segment>, Malformed> {
    let mut end = 0;
    let count = reader.count(MIN_SEGMENT_LEN)?;
    (0..count)
        .map(|_| {
            let (address, size) = read_range(reader, end)?;
            let segment = Segment {
                address,
                size,
                stream: StreamId(reader.u64()?),
                pool: read_pool(reader)?,
                expandable: flag(reader)?,
                site: SiteId(reader.u32()?),
                since_event: state.event.wrapping_sub(reader.delta(0)?),
            };
            end = segment.end();
            add(&mut counters.reserved, size);
            Ok((address, segment))
        })
        .collect()
}

fn read_blocks(
    reader: &mut Reader<'_>,
    state: &MemoryState,
    counters: &mut Counters,
) -> Result<BTreeMap<u64, Block>, Malformed> {
    let mut end = 0;
    let count = reader.count(MIN_BLOCK_LEN)?;
    (0..count)
        .map(|_| {
            let (address, size) = read_range(reader, end)?;
            let block = Block {
                address,
                size,
                requested: size.wrapping_sub(reader.delta(0)?),
                stream: StreamId(reader.u64()?),
                pool: read_pool(reader)?,
                pending_free: flag(reader)?,
                site: SiteId(reader.u32()?),
                since_event: state.event.wrapping_sub(reader.delta(0)?),
                since_ns: state.time_ns.wrapping_sub(reader.delta(0)?),
            };
            if block.requested > size {
                return Err(reader.malformed("a block smaller than what was asked for"));
            }
            end = block.end();
            add(&mut counters.active, size);
            add(&mut counters.requested, block.requested);
            if !block.pending_free {
                add(&mut counters.allocated, size);
            }
            Ok((address, block))
        })
        .collect()
}

/// A number for a state: the same state gives the same one on every machine, and two different states hardly ever do.
#[must_use]
pub fn digest(state: &MemoryState) -> u64 {
    let mut bytes = Vec::new();
    put_state(&mut bytes, state);
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
