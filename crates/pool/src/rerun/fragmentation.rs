//! The fragmentation of a pool.

use crate::pool::Pool;

impl<D> Pool<D> {
    /// Returns 1 − largest free block ÷ free bytes in segments; 0 if nothing is free. Unmapped
    /// ranges and pending frees are not free.
    ///
    /// Equal to the fragmentation of the recording's memory state, but computed without visiting
    /// every block.
    pub(super) fn fragmentation(&self) -> f64 {
        let free = self.counters.reserved_bytes.current() - self.counters.active_bytes();
        if free == 0 { 0.0 } else { 1.0 - self.pools.largest_free_bytes() as f64 / free as f64 }
    }
}
