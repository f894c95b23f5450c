//! Segments, blocks and the extents of a segment.

use crate::address_map::MemoryRange;
use crate::event::{PoolKey, StreamId};
use crate::site::SiteId;

/// A contiguous range of device memory that the allocator obtained from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes; of an expandable segment, the mapped bytes.
    pub size: u64,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolKey,
    /// Whether it is an expandable segment, which grows and shrinks by mapping memory.
    pub expandable: bool,
    /// Where the request that created it was made.
    pub site: SiteId,
    /// Index (from 0) of the event that created it; the index of the first recorded event if it is
    /// older than the recording.
    pub since_event: u64,
}

impl Segment {
    /// Returns the address after the segment's last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// An active block: allocated by the program, or freed and still used by a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes, after rounding.
    pub size: u64,
    /// Size that the program requested, in bytes.
    pub requested: u64,
    /// The stream on which it was allocated.
    pub stream: StreamId,
    /// The pool that served the request.
    pub pool: PoolKey,
    /// Where the request was made.
    pub site: SiteId,
    /// Whether the program has freed the block while a stream still uses it.
    pub pending_free: bool,
    /// Index (from 0) of the event that allocated it; the index of the first recorded event if it
    /// is older than the recording.
    pub since_event: u64,
    /// Time of the event `since_event`, in nanoseconds since the recording's time 0.
    pub since_ns: u64,
}

impl Block {
    /// Returns the address after the block's last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.size
    }
}

impl MemoryRange for Segment {
    fn address(&self) -> u64 {
        self.address
    }
    fn end(&self) -> u64 {
        self.end()
    }
}

impl MemoryRange for Block {
    fn address(&self) -> u64 {
        self.address
    }
    fn end(&self) -> u64 {
        self.end()
    }
}

/// A contiguous part of a segment: one active block, or the free space between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The active block, or `None` for free space.
    pub block: Option<&'a Block>,
}

/// Returns true if `size` bytes from `address` on are a valid range: not empty, and ending below
/// 2⁶⁴.
pub(crate) const fn is_range(address: u64, size: u64) -> bool {
    size > 0 && address.checked_add(size).is_some()
}
