//! The flat table that `torch.cuda.memory_stats()` returns.

use std::ops::Deref;

use serde::{Serialize, Serializer};

use crate::stats::{Stat, StatBySize, Stats};

/// The value that `torch.cuda.memory_stats()` returns.
///
/// Serialized, it is a map with PyTorch's keys in PyTorch's order and integer values. In Rust it
/// dereferences to [`Stats`], so that `stats.allocated_bytes.all.peak` works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats(Stats);

impl From<Stats> for MemoryStats {
    fn from(stats: Stats) -> Self {
        Self(stats)
    }
}

impl Deref for MemoryStats {
    type Target = Stats;
    fn deref(&self) -> &Stats {
        &self.0
    }
}

impl MemoryStats {
    /// Returns every key with its value, sorted by key. Values are bytes where the key contains
    /// `bytes`, otherwise counts.
    pub fn entries(&self) -> impl Iterator<Item = (String, i64)> {
        let stats = &self.0;
        let mut entries = Vec::new();
        let by_size = [
            ("active", &stats.active),
            ("active_bytes", &stats.active_bytes),
            ("allocated_bytes", &stats.allocated_bytes),
            ("allocation", &stats.allocation),
            ("inactive_split", &stats.inactive_split),
            ("inactive_split_bytes", &stats.inactive_split_bytes),
            ("requested_bytes", &stats.requested_bytes),
            ("reserved_bytes", &stats.reserved_bytes),
            ("segment", &stats.segment),
        ];
        for (quantity, StatBySize { all, small_pool, large_pool }) in by_size {
            for (pool, stat) in [("all", all), ("large_pool", large_pool), ("small_pool", small_pool)] {
                push_stat(&mut entries, &format!("{quantity}.{pool}"), stat);
            }
        }
        push_stat(&mut entries, "oversize_allocations", &stats.oversize_allocations);
        push_stat(&mut entries, "oversize_segments", &stats.oversize_segments);
        let counts = [
            ("num_alloc_retries", stats.num_alloc_retries),
            ("num_device_alloc", stats.num_device_alloc),
            ("num_device_free", stats.num_device_free),
            ("num_ooms", stats.num_ooms),
            ("num_sync_all_streams", stats.num_sync_all_streams),
        ];
        entries.extend(counts.map(|(key, count)| (key.to_owned(), count as i64)));
        // PyTorch stores "unlimited" as the largest unsigned integer, which reads as -1.
        entries.push(("max_split_size".to_owned(), stats.max_split_size.unwrap_or(u64::MAX) as i64));
        entries.sort_unstable();
        entries.into_iter()
    }
}

/// Appends the four values of `stat` to `entries`, under the keys `prefix` followed by
/// `.allocated`, `.current`, `.freed` and `.peak`.
fn push_stat(entries: &mut Vec<(String, i64)>, prefix: &str, stat: &Stat) {
    let Stat { current, peak, allocated, freed } = *stat;
    let parts = [("allocated", allocated), ("current", current), ("freed", freed), ("peak", peak)];
    entries.extend(parts.map(|(part, value)| (format!("{prefix}.{part}"), value as i64)));
}

impl Serialize for MemoryStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.entries())
    }
}
