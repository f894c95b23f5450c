//! Compares the state that a history leads to with the state that the snapshot holds.

use std::collections::BTreeMap;

use super::forward::Forward;
use super::segments::{Segment, of_row};
use crate::torch::snapshot::{BlockState, Snapshot};

/// How much differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) segments: u64,
    pub(super) blocks: u64,
}

/// How many keys have not the same value in both.
fn count<V: PartialEq>(left: &BTreeMap<u64, V>, right: &BTreeMap<u64, V>) -> u64 {
    let unlike = left.iter().filter(|&(key, value)| right.get(key) != Some(value)).count();
    let missing = right.keys().filter(|&key| !left.contains_key(key)).count();
    (unlike + missing) as u64
}

/// What of a segment the snapshot and the history both say.
fn facts(segment: &Segment) -> (u64, u64, bool, Option<vramscope_trace::PoolKind>) {
    (segment.end, segment.stream, segment.expandable, segment.pool.kind)
}

/// Compares the end of a device's history with its segments in the snapshot.
pub(super) fn difference(snapshot: &Snapshot, device: u16, end: &Forward) -> Difference {
    let rows = snapshot.segments_of(device).iter().filter(|row| row.is_range());
    let mut segments = BTreeMap::new();
    let mut blocks = BTreeMap::new();
    for row in rows {
        segments.insert(row.address, facts(&of_row(row)));
        for block in &snapshot.blocks[row.blocks.clone()] {
            if let (Some(address), true) = (block.place(), block.state != BlockState::Free) {
                let requested = block.requested.unwrap_or(block.size);
                let end = address.saturating_add(block.size);
                blocks.insert(address, (end, requested, block.state == BlockState::PendingFree));
            }
        }
    }
    let rebuilt = end.segments.iter().map(|(address, segment)| {
        let facts = facts(segment);
        // What the row does not say cannot differ.
        let unsaid = segments.get(&address).is_some_and(|(.., kind)| kind.is_none());
        (address, if unsaid { (facts.0, facts.1, facts.2, None) } else { facts })
    });
    let rebuilt = rebuilt.collect();
    let live = end.blocks.iter().map(|(&address, block)| (address, (block.end, block.requested, block.pending_free)));
    Difference { segments: count(&segments, &rebuilt), blocks: count(&blocks, &live.collect()) }
}
