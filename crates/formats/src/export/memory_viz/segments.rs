//! Writes `segments`: the memory state at the end, as PyTorch lists it.

use std::io;

use vramscope_trace::{Definitions, DeviceId, DeviceState, Extent, MempoolId, PoolKind, Segment};

use super::last_requests::LastRequests;
use super::snapshot_writer::SnapshotWriter;
use super::trace::stream_number;

/// Sums over a segment's live blocks (allocated or pending free), in bytes: allocated, active and
/// requested.
#[derive(Default)]
struct BlockTotals {
    allocated: u64,
    active: u64,
    requested: u64,
}

impl BlockTotals {
    fn new(device: &DeviceState, segment: &Segment) -> Self {
        let mut totals = Self::default();
        for block in device.extents(segment).filter_map(|extent| extent.block) {
            totals.active = totals.active.saturating_add(block.size);
            totals.requested = totals.requested.saturating_add(block.requested);
            if !block.pending_free {
                totals.allocated = totals.allocated.saturating_add(block.size);
            }
        }
        totals
    }
}

/// Writes the segments of one device at the end of the recording, sorted by address, each with its
/// blocks.
pub(super) fn write(
    out: &mut impl SnapshotWriter,
    definitions: &Definitions,
    id: DeviceId,
    device: &DeviceState,
    last_requests: &LastRequests,
) -> io::Result<()> {
    for segment in device.segments() {
        let totals = BlockTotals::new(device, segment);
        out.begin_dict()?;
        if id != DeviceId::HOST {
            out.number_field("device", id.0)?;
        }
        out.number_field("address", segment.address)?;
        out.number_field("total_size", segment.size)?;
        out.number_field("allocated_size", totals.allocated)?;
        out.number_field("active_size", totals.active)?;
        out.number_field("requested_size", totals.requested)?;
        out.number_field("stream", stream_number(segment.stream))?;
        out.constant_field("segment_type", if segment.pool.kind == PoolKind::Large { "large" } else { "small" })?;
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
            write_block(out, definitions, &extent, last_requests)?;
        }
        out.end_list()?;
        out.end_dict()?;
    }
    Ok(())
}

/// Writes one block of a segment; `extent` is a live block or the free range between two of them.
fn write_block(
    out: &mut impl SnapshotWriter,
    definitions: &Definitions,
    extent: &Extent<'_>,
    last_requests: &LastRequests,
) -> io::Result<()> {
    let requested = extent.block.map_or_else(|| last_requests.size_at(extent.address), |block| block.requested);
    let state = match extent.block {
        Some(block) if block.pending_free => "active_pending_free",
        Some(_) => "active_allocated",
        None => "inactive",
    };
    out.begin_dict()?;
    out.number_field("address", extent.address)?;
    out.number_field("size", extent.size)?;
    out.number_field("requested_size", requested)?;
    out.constant_field("state", state)?;
    out.key("frames")?;
    let site = extent.block.map(|block| block.site).unwrap_or_default();
    out.frames(definitions, definitions.site(site).stack)?;
    out.end_dict()
}
