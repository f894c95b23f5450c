//! The fragmentation of a pool.

use vramscope_trace::fragmentation;

use crate::pool::Pool;

impl<D> Pool<D> {
    /// Returns the pool's fragmentation: 1 − largest free block ÷ free bytes in segments, or 0 if
    /// nothing is free. Unmapped ranges and pending frees are not free.
    ///
    /// Equal to the fragmentation of the recording's memory state, but computed without visiting
    /// every block.
    pub(super) fn fragmentation(&self) -> f64 {
        let free = self.counters.reserved_bytes.current() - self.counters.active_bytes();
        fragmentation(self.pools.largest_free_bytes(), free)
    }

    /// Raises `peak` to the pool's fragmentation if that is higher.
    ///
    /// Most calls only check whether some free block is large enough that the fragmentation cannot
    /// exceed the peak. Computing it after every call would take a quarter of a simulation.
    #[inline]
    pub(super) fn raise_peak_fragmentation(&self, peak: &mut f64) {
        /// Exceeds the rounding errors of the comparison.
        const MARGIN: f64 = 1.0 + 1e-12;
        let free = self.counters.reserved_bytes.current() - self.counters.active_bytes();
        let harmless_bytes = (free as f64 * (1.0 - *peak) * MARGIN) as u64 + 1;
        if free > 0 && !self.pools.has_free_block(harmless_bytes) {
            *peak = peak.max(self.fragmentation());
        }
    }
}
