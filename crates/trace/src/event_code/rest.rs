//! Events that are neither an allocation nor a free, and the parts of events that stand elsewhere too.

use crate::event::{DeviceId, Event, EventKind, MempoolId, Pool, PoolKind, Stage, StreamId};
use crate::site::{SiteId, StringId};
use crate::varint::{self, Malformed, Reader};

const SEGMENT_ALLOCATED: u8 = 0;
const SEGMENT_MAPPED: u8 = 1;
const SEGMENT_FREED: u8 = 2;
const SEGMENT_UNMAPPED: u8 = 3;
const OUT_OF_MEMORY: u8 = 4;
const MEMORY_SAMPLE: u8 = 5;
const MARK: u8 = 6;
const GAP: u8 = 7;

pub(crate) fn put_pool(out: &mut Vec<u8>, pool: Pool) {
    let private = pool.owner != MempoolId::default();
    out.push(u8::from(pool.kind == PoolKind::Large) | u8::from(private) << 1);
    if private {
        varint::put(out, pool.owner.0);
        varint::put(out, pool.owner.1);
    }
}

pub(crate) fn read_pool(reader: &mut Reader<'_>) -> Result<Pool, Malformed> {
    let bits = reader.byte()?;
    if bits > 3 {
        return Err(reader.malformed("an unknown kind of pool"));
    }
    let kind = if bits & 1 == 0 { PoolKind::Small } else { PoolKind::Large };
    let owner = if bits & 2 == 0 { MempoolId::default() } else { MempoolId(reader.u64()?, reader.u64()?) };
    Ok(Pool { kind, owner })
}

pub(crate) const fn stage_code(stage: Stage) -> u8 {
    match stage {
        Stage::Instant => 0,
        Stage::Begin => 1,
        Stage::End => 2,
    }
}

pub(crate) fn read_stage(reader: &mut Reader<'_>) -> Result<Stage, Malformed> {
    Ok(match reader.byte()? {
        0 => Stage::Instant,
        1 => Stage::Begin,
        2 => Stage::End,
        _ => return Err(reader.malformed("an unknown stage of a mark")),
    })
}

pub(crate) fn read_device(reader: &mut Reader<'_>) -> Result<DeviceId, Malformed> {
    let number = reader.u64()?;
    u16::try_from(number).map(DeviceId).map_err(|_| reader.malformed("a device number of more than 16 bits"))
}

/// Appends an event: its kind, its device and the fields of its kind; addresses as differences from `before`.
pub(super) fn put_event(out: &mut Vec<u8>, before: &mut u64, event: &Event) {
    let kind_at = out.len();
    out.push(0);
    varint::put(out, u64::from(event.device.0));
    out[kind_at] = match event.kind {
        EventKind::SegmentAllocated { address, size, stream, pool, site } => {
            put_segment(out, before, address, size, site);
            varint::put(out, stream.0);
            put_pool(out, pool);
            SEGMENT_ALLOCATED
        }
        EventKind::SegmentMapped { address, size, stream, pool, site } => {
            put_segment(out, before, address, size, site);
            varint::put(out, stream.0);
            put_pool(out, pool);
            SEGMENT_MAPPED
        }
        EventKind::SegmentFreed { address, size, site } => {
            put_segment(out, before, address, size, site);
            SEGMENT_FREED
        }
        EventKind::SegmentUnmapped { address, size, site } => {
            put_segment(out, before, address, size, site);
            SEGMENT_UNMAPPED
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
            unreachable!("blocks have columns of their own")
        }
    };
}

fn put_segment(out: &mut Vec<u8>, before: &mut u64, address: u64, size: u64, site: SiteId) {
    varint::put_delta(out, *before, address);
    *before = address;
    varint::put_size(out, size);
    varint::put(out, u64::from(site.0));
}

/// Reads what [`put_event`] wrote.
pub(super) fn read_event(reader: &mut Reader<'_>, before: &mut u64) -> Result<(DeviceId, EventKind), Malformed> {
    let code = reader.byte()?;
    let device = read_device(reader)?;
    let kind = match code {
        SEGMENT_ALLOCATED..=SEGMENT_UNMAPPED => {
            let address = reader.delta(*before)?;
            *before = address;
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
        _ => return Err(reader.malformed("an unknown kind of event")),
    };
    Ok((device, kind))
}
