//! How scattered a pool's free memory is.

use crate::pool::Pool;

impl<D> Pool<D> {
    /// 1 - largest free block / free bytes in segments; 0 where nothing is free. What is not mapped is not free, and blocks that a stream
    /// still uses are not either. The same as of a recording's state at this moment, but found without a look at every block.
    pub(super) fn fragmentation(&self) -> f64 {
        let free = self.counters.reserved_bytes.current() - self.counters.active_bytes();
        if free == 0 { 0.0 } else { 1.0 - self.homes.largest() as f64 / free as f64 }
    }
}
