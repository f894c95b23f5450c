//! Encodes the events that are neither an allocation nor a free.

use super::fields::{put_pool, read_device, read_pool, read_stage, stage_code};
use crate::event::{DeviceId, Event, EventKind, EventType, StreamId};
use crate::site::{SiteId, StringId};
use crate::varint::{self, PayloadError, Reader};

/// The byte that a recording stores for [`EventKind::SegmentAllocated`].
const SEGMENT_ALLOCATED: u8 = 0;
/// The byte that a recording stores for [`EventKind::SegmentMapped`].
const SEGMENT_MAPPED: u8 = 1;
/// The byte that a recording stores for [`EventKind::SegmentFreed`].
const SEGMENT_FREED: u8 = 2;
/// The byte that a recording stores for [`EventKind::SegmentUnmapped`].
const SEGMENT_UNMAPPED: u8 = 3;
/// The byte that a recording stores for [`EventKind::OutOfMemory`].
const OUT_OF_MEMORY: u8 = 4;
/// The byte that a recording stores for [`EventKind::MemorySample`].
const MEMORY_SAMPLE: u8 = 5;
/// The byte that a recording stores for [`EventKind::Mark`].
const MARK: u8 = 6;
/// The byte that a recording stores for [`EventKind::Gap`].
const GAP: u8 = 7;

/// Appends an event that is neither an allocation nor a free: its kind, its device and the fields
/// of its kind.
///
/// A segment's address is written as the difference to `last_address`, which is updated.
pub(super) fn put_event(out: &mut Vec<u8>, last_address: &mut u64, event: &Event) {
    let kind_at = out.len();
    out.push(0);
    varint::put(out, u64::from(event.device.0));
    out[kind_at] = match event.kind {
        EventKind::SegmentAllocated { address, size, stream, pool, site }
        | EventKind::SegmentMapped { address, size, stream, pool, site } => {
            put_segment(out, last_address, address, size, site);
            varint::put(out, stream.0);
            put_pool(out, pool);
            if event.kind.event_type() == EventType::SegmentMapped { SEGMENT_MAPPED } else { SEGMENT_ALLOCATED }
        }
        EventKind::SegmentFreed { address, size, site } | EventKind::SegmentUnmapped { address, size, site } => {
            put_segment(out, last_address, address, size, site);
            if event.kind.event_type() == EventType::SegmentUnmapped { SEGMENT_UNMAPPED } else { SEGMENT_FREED }
        }
        EventKind::OutOfMemory { requested, device_free, stream, site } => {
            varint::put_size(out, requested);
            varint::put_size(out, device_free);
            varint::put(out, stream.0);
            varint::put(out, u64::from(site.0));
            OUT_OF_MEMORY
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => {
            for bytes in [used_by_context, used_by_others, free] {
                varint::put_size(out, bytes);
            }
            MEMORY_SAMPLE
        }
        EventKind::Mark { stage, name, address, site } => {
            out.push(stage_code(stage));
            varint::put(out, u64::from(name.0));
            varint::put(out, address);
            varint::put(out, u64::from(site.0));
            MARK
        }
        EventKind::Gap { lost } => {
            varint::put(out, lost);
            GAP
        }
        EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. } => {
            unreachable!("allocations and frees are written as other operations")
        }
    };
}

/// Appends the fields that all segment events have. The address is written as the difference to
/// `last_address`, which becomes `address`.
fn put_segment(out: &mut Vec<u8>, last_address: &mut u64, address: u64, size: u64, site: SiteId) {
    varint::put_delta(out, *last_address, address);
    *last_address = address;
    varint::put_size(out, size);
    varint::put(out, u64::from(site.0));
}

/// Reads the event that [`put_event`] wrote. `last_address` is the address of the previous segment
/// event of the chunk, and is updated.
pub(super) fn read_event(
    reader: &mut Reader<'_>,
    last_address: &mut u64,
) -> Result<(DeviceId, EventKind), PayloadError> {
    let code = reader.byte()?;
    let device = read_device(reader)?;
    let kind = match code {
        SEGMENT_ALLOCATED..=SEGMENT_UNMAPPED => {
            let address = reader.delta(*last_address)?;
            *last_address = address;
            let size = reader.size()?;
            let site = SiteId(reader.u32()?);
            match code {
                SEGMENT_FREED => EventKind::SegmentFreed { address, size, site },
                SEGMENT_UNMAPPED => EventKind::SegmentUnmapped { address, size, site },
                _ => {
                    let stream = StreamId(reader.u64()?);
                    let pool = read_pool(reader)?;
                    if code == SEGMENT_ALLOCATED {
                        EventKind::SegmentAllocated { address, size, stream, pool, site }
                    } else {
                        EventKind::SegmentMapped { address, size, stream, pool, site }
                    }
                }
            }
        }
        OUT_OF_MEMORY => EventKind::OutOfMemory {
            requested: reader.size()?,
            device_free: reader.size()?,
            stream: StreamId(reader.u64()?),
            site: SiteId(reader.u32()?),
        },
        MEMORY_SAMPLE => EventKind::MemorySample {
            used_by_context: reader.size()?,
            used_by_others: reader.size()?,
            free: reader.size()?,
        },
        MARK => EventKind::Mark {
            stage: read_stage(reader)?,
            name: StringId(reader.u32()?),
            address: reader.u64()?,
            site: SiteId(reader.u32()?),
        },
        GAP => EventKind::Gap { lost: reader.u64()? },
        _ => return Err(reader.payload_error("unknown event kind")),
    };
    Ok((device, kind))
}
