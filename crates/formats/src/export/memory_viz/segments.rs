//! `segments`: the memory state at the end, as PyTorch lists it.

use std::io;

use vramscope_trace::{Definitions, DeviceId, DeviceState, Extent, MempoolId, PoolKind, Segment};

use super::leftover::Leftover;
use super::notation::Notation;
use super::trace::stream_number;

/// Sums over the live blocks of a segment, in bytes.
#[derive(Default)]
struct Sums {
    allocated: u64,
    active: u64,
    requested: u64,
}

impl Sums {
    fn of(device: &DeviceState, segment: &Segment) -> Self {
        let mut sums = Self::default();
        for block in device.extents(segment).filter_map(|extent| extent.block) {
            sums.active = sums.active.saturating_add(block.size);
            sums.requested = sums.requested.saturating_add(block.requested);
            if !block.pending_free {
                sums.allocated = sums.allocated.saturating_add(block.size);
            }
        }
        sums
    }
}

/// Writes the segments of one device, in order of address.
pub(super) fn write(
    out: &mut impl Notation,
    definitions: &Definitions,
    id: DeviceId,
    device: &DeviceState,
    leftover: &Leftover,
) -> io::Result<()> {
    for segment in device.segments() {
        let sums = Sums::of(device, segment);
        out.begin_dict()?;
        if id != DeviceId::HOST {
            out.number_field("device", id.0)?;
        }
        out.number_field("address", segment.address)?;
        out.number_field("total_size", segment.size)?;
        out.number_field("allocated_size", sums.allocated)?;
        out.number_field("active_size", sums.active)?;
        out.number_field("requested_size", sums.requested)?;
        out.number_field("stream", stream_number(segment.stream))?;
        out.word_field("segment_type", if segment.pool.kind == PoolKind::Large { "large" } else { "small" })?;
        out.key("segment_pool_id")?;
        let MempoolId(first, second) = segment.pool.owner;
        out.pair(first, second)?;
        out.key("is_expandable")?;
        out.boolean(segment.expandable)?;
        out.key("frames")?;
        out.frames(definitions, definitions.site(segment.site).stack)?;
        out.key("blocks")?;
        out.begin_list()?;
        for extent in device.extents(segment) {
            write_block(out, definitions, &extent, leftover)?;
        }
        out.end_list()?;
        out.end_dict()?;
    }
    Ok(())
}

fn write_block(
    out: &mut impl Notation,
    definitions: &Definitions,
    extent: &Extent<'_>,
    leftover: &Leftover,
) -> io::Result<()> {
    let requested = extent.block.map_or_else(|| leftover.of(extent.address), |block| block.requested);
    let state = match extent.block {
        Some(block) if block.pending_free => "active_pending_free",
        Some(_) => "active_allocated",
        None => "inactive",
    };
    out.begin_dict()?;
    out.number_field("address", extent.address)?;
    out.number_field("size", extent.size)?;
    out.number_field("requested_size", requested)?;
    out.word_field("state", state)?;
    out.key("frames")?;
    let site = extent.block.map(|block| block.site).unwrap_or_default();
    out.frames(definitions, definitions.site(site).stack)?;
    out.end_dict()
}
