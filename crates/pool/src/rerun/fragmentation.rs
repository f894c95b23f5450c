//! The fragmentation of a pool, and its peak.

use vramscope_trace::fragmentation;

use crate::index::StreamPoolIndex;
use crate::pool::Pool;

/// The peak of a pool's fragmentation: 1 − largest free block ÷ free bytes in segments, or 0 if
/// nothing is free. Unmapped ranges and pending frees are not free.
///
/// Equal to the fragmentation of the recording's memory state, but computed without visiting every
/// block, and only if it may exceed the peak. Computing it after every call would take a quarter of
/// a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FragmentationPeak {
    peak: f64,
    /// A bin of a stream pool's free blocks. While it or a bin for larger blocks is not empty, the
    /// fragmentation cannot exceed the peak with at most `harmless_free_bytes` of free bytes.
    bin: Option<(StreamPoolIndex, usize)>,
    /// Number of free bytes up to which the fragmentation cannot exceed the peak while `bin` or a
    /// later bin is not empty.
    harmless_free_bytes: u64,
}

impl FragmentationPeak {
    /// Returns the highest fragmentation so far, from 0 to 1.
    pub(super) fn peak(&self) -> f64 {
        self.peak
    }

    /// Raises the peak to the pool's fragmentation if that is higher.
    #[inline]
    pub(super) fn raise<D>(&mut self, pool: &Pool<D>) {
        let free_bytes = pool.counters.reserved_bytes.current().saturating_sub(pool.counters.active_bytes());
        let is_harmless = free_bytes <= self.harmless_free_bytes
            && self.bin.is_some_and(|(stream_pool, bin)| pool.pools[stream_pool].free.last_bin() >= Some(bin));
        if !is_harmless && free_bytes > 0 {
            self.update(pool, free_bytes);
        }
    }

    /// Computes the fragmentation of the pool, which has `free_bytes` free bytes, and raises the
    /// peak if it is higher. Stores the bin of the largest free block and `harmless_free_bytes`,
    /// with which later calls skip the computation.
    #[inline(never)]
    fn update<D>(&mut self, pool: &Pool<D>, free_bytes: u64) {
        /// Factor for the number of harmless free bytes, so that rounding errors cannot hide a new
        /// peak.
        const MARGIN: f64 = 1.0 - 1e-12;
        let Some((stream_pool, largest_bytes)) = pool.pools.largest_free() else {
            self.peak = self.peak.max(fragmentation(0, free_bytes));
            return;
        };
        self.peak = self.peak.max(fragmentation(largest_bytes, free_bytes));
        let free = &pool.pools[stream_pool].free;
        self.bin = free.last_bin().map(|bin| (stream_pool, bin));
        self.harmless_free_bytes = (free.last_bin_bytes() as f64 / (1.0 - self.peak) * MARGIN) as u64;
    }
}
