//! Compares the state at the end of a rebuilt history with the state in the snapshot.

use std::collections::BTreeMap;

use super::forward::ForwardWalk;
use super::segments::{Segment, segment_of_row};
use crate::torch::snapshot::{BlockState, Snapshot};

/// Number of segments and of blocks that differ between a rebuilt history's end and the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) segments: u64,
    pub(super) blocks: u64,
}

/// Returns the number of addresses at which two maps of segments or blocks differ: the values
/// differ, or only one map has the address.
fn count<V: PartialEq>(left: &BTreeMap<u64, V>, right: &BTreeMap<u64, V>) -> u64 {
    let different = left.iter().filter(|&(key, value)| right.get(key) != Some(value)).count();
    let missing = right.keys().filter(|&key| !left.contains_key(key)).count();
    (different + missing) as u64
}

/// Returns the properties of a segment that both the snapshot and the history determine: end
/// address, stream, whether it is expandable, and size class.
fn properties(segment: &Segment) -> (u64, u64, bool, Option<vramscope_trace::PoolKind>) {
    (segment.end, segment.stream, segment.expandable, segment.pool.kind)
}

/// Counts the segments and blocks in which `end`, the state after a device's last entry, differs
/// from the snapshot.
pub(super) fn difference(snapshot: &Snapshot, device: u16, end: &ForwardWalk) -> Difference {
    let rows = snapshot.segments_of(device).iter().filter(|row| row.is_range());
    let mut segments = BTreeMap::new();
    let mut blocks = BTreeMap::new();
    for row in rows {
        segments.insert(row.address, properties(&segment_of_row(row)));
        for block in &snapshot.blocks[row.blocks.clone()] {
            if let (Some(address), true) = (block.valid_address(), block.state != BlockState::Free) {
                let requested = block.requested.unwrap_or(block.size);
                let end = address.saturating_add(block.size);
                blocks.insert(address, (end, requested, block.state == BlockState::PendingFree));
            }
        }
    }
    let rebuilt = end.segments.iter().map(|(address, segment)| {
        let properties = properties(segment);
        // A size class that the snapshot lacks does not count as a difference.
        let kind_is_missing = segments.get(&address).is_some_and(|(.., kind)| kind.is_none());
        (address, if kind_is_missing { (properties.0, properties.1, properties.2, None) } else { properties })
    });
    let rebuilt = rebuilt.collect();
    let live = end.blocks.iter().map(|(&address, block)| (address, (block.end, block.requested, block.pending_free)));
    Difference { segments: count(&segments, &rebuilt), blocks: count(&blocks, &live.collect()) }
}
