//! One walk over the blocks of a device.

use std::collections::BTreeMap;

use super::{Metrics, class};
use crate::device_state::DeviceState;
use crate::event::{Pool, StreamId};
use crate::state::{Block, Segment};

/// The metrics of a device by pool and stream. What is reserved and free counts where the segment belongs, what is allocated where the
/// block does; they are the same where a recording fits together.
#[must_use]
pub fn metrics_by_group(device: &DeviceState) -> BTreeMap<(Pool, StreamId), Metrics> {
    let mut groups = Groups::default();
    let mut blocks = device.blocks().peekable();
    for segment in device.segments() {
        // Blocks that lie in no segment.
        while let Some(block) = blocks.next_if(|block| block.address < segment.address) {
            groups.of(block.pool, block.stream).add_block(block);
        }
        let metrics = groups.of(segment.pool, segment.stream);
        metrics.segments += 1;
        metrics.counters.reserved = metrics.counters.reserved.saturating_add(segment.size);
        let mut at = segment.address;
        while let Some(block) = blocks.next_if(|block| block.address < segment.end()) {
            groups.of(segment.pool, segment.stream).add_free(segment, block.address - at);
            groups.of(block.pool, block.stream).add_block(block);
            at = block.end().min(segment.end());
        }
        groups.of(segment.pool, segment.stream).add_free(segment, segment.end() - at);
    }
    blocks.for_each(|block| groups.of(block.pool, block.stream).add_block(block));
    groups.list.into_iter().collect()
}

impl Metrics {
    fn add_block(&mut self, block: &Block) {
        let counters = &mut self.counters;
        counters.active = counters.active.saturating_add(block.size);
        counters.requested = counters.requested.saturating_add(block.requested);
        if !block.pending_free {
            counters.allocated = counters.allocated.saturating_add(block.size);
        }
    }

    /// Adds the free space between two blocks of a segment, if there is any.
    fn add_free(&mut self, segment: &Segment, size: u64) {
        if size == 0 {
            return;
        }
        self.free.total = self.free.total.saturating_add(size);
        self.free.largest = self.free.largest.max(size);
        self.free.blocks += 1;
        self.free_squares = self.free_squares.saturating_add(u128::from(size) * u128::from(size));
        self.free_by_class[class(size)] = self.free_by_class[class(size)].saturating_add(size);
        if !segment.expandable && size < segment.size {
            self.inactive_split += 1;
            self.inactive_split_bytes = self.inactive_split_bytes.saturating_add(size);
        }
    }
}

#[derive(Default)]
struct Groups {
    list: Vec<((Pool, StreamId), Metrics)>,
    places: BTreeMap<(Pool, StreamId), usize>,
    /// The place of the last one asked for: neighbors in memory are mostly of one group.
    last: usize,
}

impl Groups {
    fn of(&mut self, pool: Pool, stream: StreamId) -> &mut Metrics {
        let key = (pool, stream);
        if self.list.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = *self.places.entry(key).or_insert(self.list.len());
            if self.last == self.list.len() {
                self.list.push((key, Metrics::default()));
            }
        }
        &mut self.list[self.last].1
    }
}
