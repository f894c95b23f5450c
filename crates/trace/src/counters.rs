//! Byte counters of one device at one moment.

use crate::metrics::{fragmentation, rounding_waste_bytes};

/// The allocator's byte counters for one device at one moment (PyTorch's `memory_stats`):
/// allocated, active, reserved and requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of blocks that the program holds, after rounding (`allocated_bytes`).
    pub allocated: u64,
    /// Allocated bytes plus those of blocks that are pending free (`active_bytes`).
    pub active: u64,
    /// Bytes of all segments (`reserved_bytes`).
    pub reserved: u64,
    /// Bytes that the program requested for the active blocks (`requested_bytes`).
    pub requested: u64,
}

impl Counters {
    /// Returns the bytes that rounding adds to the requested bytes of active blocks.
    #[must_use]
    pub fn rounding_waste_bytes(&self) -> u64 {
        rounding_waste_bytes(self.active, self.requested)
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
