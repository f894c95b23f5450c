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
}
