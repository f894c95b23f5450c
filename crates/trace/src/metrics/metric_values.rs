//! The metrics of one moment, each defined once here and, with formula and source, in
//! `docs/metrics.md`.

use crate::counter_series::CounterSeries;
use crate::counters::{Counters, FreeSpace};
use crate::device_state::DeviceState;
use crate::event::{PoolKey, StreamId};
use crate::segment::{Block, Segment};

/// Number of classes into which [`Metrics`] sorts free blocks by size: below 1 KiB, then a class
/// for each power of two, the last from 4 GiB on.
pub(super) const CLASSES: usize = 24;
/// Base-2 logarithm of the first size class of free blocks: 512 to 1,023 bytes. Smaller blocks
/// belong to that class, too.
const FIRST_CLASS_LOG2: u32 = 9;

/// How well memory is used at one moment: fragmentation, rounding waste and related figures.
///
/// Covers a device, one pool, one stream, or any selection of them. Sums are fields; the figures
/// derived from them are methods. Shares are from 0 to 1, sizes in bytes.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Event, EventKind, MemoryState, Metrics, PoolKey, SiteId, StreamId,
/// };
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
/// let mut state = MemoryState::default();
/// for kind in [
///     EventKind::SegmentAllocated { address: 0, size: 4096, stream, pool, site },
///     EventKind::BlockAllocated { address: 1024, size: 1024, requested: 1000, stream, pool, site },
/// ] {
///     state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
/// }
/// let device = state.device(DeviceId(0)).expect("the events created it");
/// let metrics = Metrics::at(device, |_pool, _stream| true);
/// // 1 KiB is free before the block and 2 KiB after it.
/// assert_eq!((metrics.free.total, metrics.free.largest), (3072, 2048));
/// assert_eq!(metrics.fragmentation(), 1.0 - 2048.0 / 3072.0);
/// assert_eq!(metrics.rounding_waste_bytes(), 24);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Number of segments.
    pub segments: u64,
    /// Allocated, active, reserved and requested bytes.
    pub counters: Counters,
    /// Free blocks in segments.
    pub free: FreeSpace,
    /// Sum of the squares of the free blocks' sizes.
    pub free_squares: u128,
    /// Number of free blocks that share their segment with another block, without expandable
    /// segments (PyTorch's `inactive_split`).
    pub inactive_split: u64,
    /// Bytes of the blocks counted in `inactive_split` (PyTorch's `inactive_split_bytes`,
    /// "non-releasable memory").
    pub inactive_split_bytes: u64,
    /// Bytes of free blocks by size class.
    pub(super) free_by_class: [u64; CLASSES],
}

/// Returns the index (from 0) of the size class of a free block of `size` bytes.
const fn size_class(size: u64) -> usize {
    let log2 = if size == 0 { 0 } else { size.ilog2() };
    let size_class = log2.saturating_sub(FIRST_CLASS_LOG2) as usize;
    if size_class < CLASSES { size_class } else { CLASSES - 1 }
}

impl Metrics {
    /// Returns the external fragmentation: 1 − largest free block ÷ free bytes; 0 if nothing is
    /// free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.free.fragmentation()
    }

    /// Returns the free-space index: Σ size² ÷ (Σ size)² over the free blocks.
    ///
    /// 1 for a single free block, 1/n for n equal ones, and 1 if nothing is free.
    #[must_use]
    pub fn free_space_index(&self) -> f64 {
        let total = self.free.total as f64;
        // Rounding can lead slightly above 1.
        if self.free.total == 0 { 1.0 } else { (self.free_squares as f64 / (total * total)).min(1.0) }
    }

    /// Returns the share of the free bytes in blocks smaller than a request of `request` bytes; 0
    /// if nothing is free.
    ///
    /// Exact for powers of two from 1 KiB to 4 GiB. Other requests are rounded down to a power of
    /// two, so that the share is never overstated. For an exact value at one moment use the
    /// function [`unusable_share`].
    #[must_use]
    pub fn unusable_share(&self, request: u64) -> f64 {
        let unusable: u64 = self.free_by_class[..size_class(request)].iter().sum();
        share(unusable, self.free.total, 0.0)
    }

    /// Returns the bytes that rounding adds to the requested bytes of active blocks (internal
    /// fragmentation).
    #[must_use]
    pub fn rounding_waste_bytes(&self) -> u64 {
        self.counters.rounding_waste_bytes()
    }

    /// Returns the bytes added by rounding as a share of the active bytes; 0 if nothing is active.
    #[must_use]
    pub fn rounding_waste(&self) -> f64 {
        share(self.rounding_waste_bytes(), self.counters.active, 0.0)
    }

    /// Returns reserved − allocated bytes: free memory of segments, and blocks that are pending
    /// free.
    #[must_use]
    pub fn unallocated_bytes(&self) -> u64 {
        self.counters.reserved.saturating_sub(self.counters.allocated)
    }

    /// Adds the size and requested size of an active block to the metrics' counters.
    pub(super) fn add_block(&mut self, block: &Block) {
        self.counters.add_block(block.size, block.requested, block.pending_free);
    }

    /// Adds a free block of `size` bytes in `segment`; does nothing if `size` is 0.
    pub(super) fn add_free(&mut self, segment: &Segment, size: u64) {
        if size == 0 {
            return;
        }
        self.free.total = self.free.total.saturating_add(size);
        self.free.largest = self.free.largest.max(size);
        self.free.blocks += 1;
        self.free_squares = self.free_squares.saturating_add(u128::from(size) * u128::from(size));
        self.free_by_class[size_class(size)] = self.free_by_class[size_class(size)].saturating_add(size);
        if !segment.expandable && size < segment.size {
            self.inactive_split += 1;
            self.inactive_split_bytes = self.inactive_split_bytes.saturating_add(size);
        }
    }

    /// Adds the metrics of other pools and streams at the same moment. The result is exact, because
    /// no free block spans two pools.
    pub(crate) fn merge(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.segments, other.segments);
        add(&mut self.counters.allocated, other.counters.allocated);
        add(&mut self.counters.active, other.counters.active);
        add(&mut self.counters.reserved, other.counters.reserved);
        add(&mut self.counters.requested, other.counters.requested);
        add(&mut self.free.total, other.free.total);
        add(&mut self.free.blocks, other.free.blocks);
        add(&mut self.inactive_split, other.inactive_split);
        add(&mut self.inactive_split_bytes, other.inactive_split_bytes);
        self.free.largest = self.free.largest.max(other.free.largest);
        self.free_squares = self.free_squares.saturating_add(other.free_squares);
        for (sum, more) in self.free_by_class.iter_mut().zip(other.free_by_class) {
            add(sum, more);
        }
    }
}

/// Returns `part` ÷ `whole`; `if_empty` if `whole` is 0.
fn share(part: u64, whole: u64, if_empty: f64) -> f64 {
    if whole == 0 { if_empty } else { part as f64 / whole as f64 }
}

/// Returns the share of a device's free bytes in blocks smaller than a request of `request` bytes;
/// 0 if nothing is free.
///
/// Only the pools and streams for which `select` returns true count: a request is served only from
/// its own stream and pool. The cost is linear in the number of segments and blocks.
#[must_use]
pub fn unusable_share(device: &DeviceState, request: u64, mut select: impl FnMut(PoolKey, StreamId) -> bool) -> f64 {
    let (mut unusable, mut total) = (0u64, 0u64);
    for segment in device.segments().filter(|segment| select(segment.pool, segment.stream)) {
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            total = total.saturating_add(extent.size);
            unusable = unusable.saturating_add(if extent.size < request { extent.size } else { 0 });
        }
    }
    share(unusable, total, 0.0)
}

/// Returns the peak of active bytes ÷ the peak of reserved bytes, from 0 to 1.
///
/// The two peaks may be at different moments. The value is 1 if nothing was ever reserved, and if a
/// history that contradicts itself has more active than reserved bytes.
#[must_use]
pub fn peak_utilization(series: &CounterSeries) -> f64 {
    share(series.peak_active().bytes, series.peak_reserved().bytes, 1.0).min(1.0)
}
