//! The metrics of a device by pool and stream, from one pass over its blocks.

use std::collections::BTreeMap;

use super::metric_values::Metrics;
use crate::device_state::DeviceState;
use crate::event::{PoolKey, StreamId};

/// Returns the metrics of each pool and stream of a device.
///
/// Reserved and free bytes count for the segment's pool and stream, allocated bytes for the block's
/// pool and stream, which are equal in a consistent recording. The cost is linear in the number of
/// segments and blocks.
#[must_use]
pub fn metrics_by_group(device: &DeviceState) -> BTreeMap<(PoolKey, StreamId), Metrics> {
    let mut groups = MetricsByGroup::default();
    let mut blocks = device.blocks().peekable();
    for segment in device.segments() {
        // Blocks outside of every segment.
        while let Some(block) = blocks.next_if(|block| block.address < segment.address) {
            groups.entry(block.pool, block.stream).add_block(block);
        }
        let metrics = groups.entry(segment.pool, segment.stream);
        metrics.segments += 1;
        metrics.counters.reserved = metrics.counters.reserved.saturating_add(segment.size);
        let mut at = segment.address;
        while let Some(block) = blocks.next_if(|block| block.address < segment.end()) {
            groups.entry(segment.pool, segment.stream).add_free(segment, block.address - at);
            groups.entry(block.pool, block.stream).add_block(block);
            at = block.end().min(segment.end());
        }
        groups.entry(segment.pool, segment.stream).add_free(segment, segment.end() - at);
    }
    blocks.for_each(|block| groups.entry(block.pool, block.stream).add_block(block));
    // Insert one by one: `collect` would add a sort function for this type to the page.
    let mut by_group = BTreeMap::new();
    by_group.extend(groups.list);
    by_group
}

impl Metrics {
    /// Returns the metrics of the pools and streams of a device for which `select` returns true.
    ///
    /// The cost is linear in the number of segments and blocks.
    #[must_use]
    pub fn at(device: &DeviceState, mut select: impl FnMut(PoolKey, StreamId) -> bool) -> Self {
        let mut all = Self::default();
        let groups = metrics_by_group(device).into_iter();
        groups.filter(|&((pool, stream), _)| select(pool, stream)).for_each(|(_, metrics)| all.merge(&metrics));
        all
    }
}

/// The metrics of a device by pool and stream, while they are computed.
#[derive(Default)]
struct MetricsByGroup {
    list: Vec<((PoolKey, StreamId), Metrics)>,
    /// Indexes in `list`.
    index_of: BTreeMap<(PoolKey, StreamId), usize>,
    /// Index of the last group used; adjacent blocks are mostly in one group.
    last: usize,
}

impl MetricsByGroup {
    /// Returns the metrics of a pool and stream, adding empty ones if the pair is new.
    fn entry(&mut self, pool: PoolKey, stream: StreamId) -> &mut Metrics {
        let key = (pool, stream);
        if self.list.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = *self.index_of.entry(key).or_insert(self.list.len());
            if self.last == self.list.len() {
                self.list.push((key, Metrics::default()));
            }
        }
        &mut self.list[self.last].1
    }
}
