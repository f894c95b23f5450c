//! How well memory is used, in numbers: each defined once here and, with formula and source, in `docs/metrics.md`.
//!
//! [`Metrics`] are those of one moment, over a device, one of its pools or streams, or any choice of them; [`MetricsSeries`] is a
//! bounded number of moments of a recording.

mod code;
mod groups;
mod series;

pub(crate) use code::{put_metrics, read_metrics};
pub use groups::metrics_by_group;
pub use series::{Churn, MetricsSample, MetricsSeries};

use crate::device_state::DeviceState;
use crate::event::{Pool, StreamId};
use crate::series::Series;
use crate::state::{Counters, FreeSpace};

/// Classes of free blocks by size: below 1 KiB, then by powers of two, the last from 4 GiB on.
const CLASSES: usize = 24;
/// log2 of the sizes of the first class.
const FIRST_CLASS: u32 = 9;

/// The metrics of one moment. Those that are sums are fields, those that are made of them methods. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Segments.
    pub segments: u64,
    /// Bytes allocated, active, reserved and requested.
    pub counters: Counters,
    /// Free blocks in segments.
    pub free: FreeSpace,
    /// The sum of the squares of their sizes.
    pub free_squares: u128,
    /// Free blocks that share their segment with another block, in segments that are no expandable ones: PyTorch's `inactive_split`.
    pub inactive_split: u64,
    /// Their bytes: PyTorch's `inactive_split_bytes`, "non-releasable memory".
    pub inactive_split_bytes: u64,
    /// Bytes of free blocks by size.
    free_by_class: [u64; CLASSES],
}

/// The class of a size.
const fn class(size: u64) -> usize {
    let log2 = if size == 0 { 0 } else { size.ilog2() };
    let class = log2.saturating_sub(FIRST_CLASS) as usize;
    if class < CLASSES { class } else { CLASSES - 1 }
}

impl Metrics {
    /// The metrics of those pools and streams of a device that `select` takes. Costs the device's segments and blocks.
    #[must_use]
    pub fn at(device: &DeviceState, mut select: impl FnMut(Pool, StreamId) -> bool) -> Self {
        let mut all = Self::default();
        let groups = metrics_by_group(device).into_iter();
        groups.filter(|&((pool, stream), _)| select(pool, stream)).for_each(|(_, metrics)| all.merge(&metrics));
        all
    }

    /// External fragmentation: 1 - largest free block / free bytes; 0 where nothing is free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.free.fragmentation()
    }

    /// The free-space index: the sum of the squares of the free blocks' sizes over the square of their sum. 1 for one block, 1/n for n
    /// equal ones; 1 where nothing is free.
    #[must_use]
    pub fn free_space_index(&self) -> f64 {
        let total = self.free.total as f64;
        // Rounding may lead beyond 1 by a hair.
        if self.free.total == 0 { 1.0 } else { (self.free_squares as f64 / (total * total)).min(1.0) }
    }

    /// The share of the free bytes that lies in blocks smaller than a request of `request` bytes; 0 where nothing is free. Exact for powers
    /// of two from 1 KiB to 4 GiB; another request is taken for the power of two below it, so that the share is not overstated. For
    /// exactly one size at one moment see [`unusable_share`].
    #[must_use]
    pub fn unusable_share(&self, request: u64) -> f64 {
        let unusable: u64 = self.free_by_class[..class(request)].iter().sum();
        share(unusable, self.free.total, 0.0)
    }

    /// Bytes that rounding adds to what was asked for, over active blocks: internal fragmentation.
    #[must_use]
    pub fn rounding_waste_bytes(&self) -> u64 {
        self.counters.active.saturating_sub(self.counters.requested)
    }

    /// The same as a share of the active bytes; 0 where none is active.
    #[must_use]
    pub fn rounding_waste(&self) -> f64 {
        share(self.rounding_waste_bytes(), self.counters.active, 0.0)
    }

    /// Bytes held from the device that the program has not allocated: free, or waiting for a stream.
    #[must_use]
    pub fn unallocated_bytes(&self) -> u64 {
        self.counters.reserved.saturating_sub(self.counters.allocated)
    }

    /// Adds the metrics of other pools and streams of the same moment. Free blocks never reach from one into another.
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

/// A part of a whole; `of_none` where there is no whole.
fn share(part: u64, whole: u64, of_none: f64) -> f64 {
    if whole == 0 { of_none } else { part as f64 / whole as f64 }
}

/// The share of a device's free bytes that lies in blocks smaller than a request of `request` bytes, in those pools and streams that
/// `select` takes: the request of a stream can be served only from its own, and only from the pool of its size. 0 where nothing is
/// free. Costs the device's segments and blocks.
#[must_use]
pub fn unusable_share(device: &DeviceState, request: u64, mut select: impl FnMut(Pool, StreamId) -> bool) -> f64 {
    let (mut unusable, mut total) = (0u64, 0u64);
    for segment in device.segments().filter(|segment| select(segment.pool, segment.stream)) {
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            total = total.saturating_add(extent.size);
            unusable = unusable.saturating_add(if extent.size < request { extent.size } else { 0 });
        }
    }
    share(unusable, total, 0.0)
}

/// The greatest number of active bytes over the greatest number of reserved ones, which need not be of the same moment: 1 where all that
/// was ever held was needed at once, and where nothing was held; also where a history that contradicts itself has blocks in no segment, and so
/// more active than reserved.
#[must_use]
pub fn peak_use(series: &Series) -> f64 {
    share(series.peak_active().bytes, series.peak_reserved().bytes, 1.0).min(1.0)
}
