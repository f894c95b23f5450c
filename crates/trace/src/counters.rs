//! Byte counters of one device at one moment.

/// The allocator's byte counters for one device at one moment (PyTorch's `memory_stats`):
/// allocated, active, reserved and requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of blocks that the program holds, after rounding (`allocated_bytes`).
    pub allocated: u64,
    /// Bytes of allocated blocks and of blocks that are pending free (`active_bytes`).
    pub active: u64,
    /// Bytes of all segments (`reserved_bytes`).
    pub reserved: u64,
    /// Bytes that the program requested for the active blocks (`requested_bytes`).
    pub requested: u64,
}

impl Counters {
    /// Returns the bytes that rounding adds to the requested bytes of active blocks: active −
    /// requested, and 0 if a contradictory history has more requested than active bytes.
    #[must_use]
    pub fn rounding_waste_bytes(&self) -> u64 {
        self.active.saturating_sub(self.requested)
    }

    /// Returns the counters in the order in which a recording stores them.
    #[inline]
    pub(crate) fn to_array(self) -> [u64; 4] {
        [self.allocated, self.active, self.reserved, self.requested]
    }

    /// Returns the counters that [`to_array`](Self::to_array) put in this order.
    #[inline]
    pub(crate) fn from_array([allocated, active, reserved, requested]: [u64; 4]) -> Self {
        Self { allocated, active, reserved, requested }
    }

    /// Adds a block's size and requested size in bytes. A block that is pending free does not count
    /// as allocated.
    #[inline]
    pub(crate) fn add_block(&mut self, size: u64, requested: u64, pending_free: bool) {
        self.active = self.active.saturating_add(size);
        self.requested = self.requested.saturating_add(requested);
        if !pending_free {
            self.allocated = self.allocated.saturating_add(size);
        }
    }

    /// Subtracts a block's size and requested size in bytes. `pending_free` is true if a requested
    /// free has subtracted the block from the allocated bytes before.
    #[inline]
    pub(crate) fn subtract_block(&mut self, size: u64, requested: u64, pending_free: bool) {
        self.active = self.active.saturating_sub(size);
        self.requested = self.requested.saturating_sub(requested);
        if !pending_free {
            self.allocated = self.allocated.saturating_sub(size);
        }
    }
}

/// The driver's report on a device's whole memory, in bytes.
///
/// Recorded by [`EventKind::MemorySample`](crate::EventKind::MemorySample).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Bytes that this process holds outside the pool: CUDA context, modules, libraries.
    pub used_by_context: u64,
    /// Bytes that other processes hold.
    pub used_by_others: u64,
    /// Free bytes.
    pub free: u64,
}

impl MemorySample {
    /// Returns the values in the order in which a recording stores them.
    pub(crate) fn to_array(self) -> [u64; 3] {
        [self.used_by_context, self.used_by_others, self.free]
    }

    /// Returns the sample whose values [`to_array`](Self::to_array) put in this order.
    pub(crate) fn from_array([used_by_context, used_by_others, free]: [u64; 3]) -> Self {
        Self { used_by_context, used_by_others, free }
    }
}

/// The number, total size and largest size of the free blocks in a device's segments at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes of all free blocks.
    pub total: u64,
    /// Bytes of the largest free block.
    pub largest: u64,
    /// Number of free blocks.
    pub blocks: u64,
}

impl FreeSpace {
    /// Returns the external fragmentation, from 0 to 1.
    ///
    /// It is 1 − largest free block ÷ free bytes in segments, and 0 if nothing is free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        fragmentation(self.largest, self.total)
    }
}

/// Returns the external fragmentation, from 0 to 1: 1 − largest free block ÷ free bytes in
/// segments; 0 if nothing is free. Both arguments are in bytes.
///
/// [`FreeSpace::fragmentation`] computes it for a known [`FreeSpace`].
#[must_use]
pub fn fragmentation(largest_free: u64, free: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - largest_free as f64 / free as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_the_share_outside_the_largest_free_block() {
        for (largest, free, expected) in
            [(0, 0, 0.0), (4096, 4096, 0.0), (2048, 3072, 1.0 - 2048.0 / 3072.0), (1, 4, 0.75)]
        {
            assert_eq!(fragmentation(largest, free), expected, "{largest} of {free}");
        }
    }

    #[test]
    fn rounding_waste_is_never_negative() {
        let waste = |active, requested| Counters { active, requested, ..Counters::default() }.rounding_waste_bytes();
        assert_eq!((waste(512, 400), waste(400, 512)), (112, 0));
    }
}
