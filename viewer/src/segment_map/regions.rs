//! The address ranges that the heatmap's rows show: segments, and expandable segments with the
//! unmapped holes between their mapped parts.

use std::cmp::Reverse;
use std::ops::Range;

use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{DeviceState, MempoolId, PoolKind, Segment};

use super::view::SortBy;

/// A range of addresses that the heatmap draws as a unit: a segment, or the mapped parts of an
/// expandable segment with the unmapped holes between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// The segment. For an expandable segment: its first mapped part, with the size of all parts
    /// and holes.
    pub(super) segment: Segment,
    /// Bytes of the mapped parts, without holes.
    pub(super) mapped_bytes: u64,
    /// Index of the first mapped part in [`Regions::parts`].
    first_part: u32,
    /// Number of mapped parts.
    part_count: u32,
}

/// All regions of a device and their mapped parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Regions {
    /// The regions, by ascending address.
    list: Vec<Region>,
    /// The mapped address ranges of all regions, by ascending address.
    parts: Vec<Range<u64>>,
}

impl Regions {
    /// Finds the regions of a device.
    ///
    /// A recording does not contain the address range that an expandable segment reserves. Two
    /// consecutive mapped ranges of one pool and stream count as one segment if the hole between
    /// them is at most as large as the ranges before and after it together.
    pub(super) fn new(device: &DeviceState) -> Self {
        let segments = device.segments();
        let mut list: Vec<Region> = Vec::with_capacity(segments.len());
        let mut parts = Vec::with_capacity(segments.len());
        for &segment in segments {
            match list.last_mut().filter(|last| is_continued(last, &segment)) {
                Some(last) => {
                    last.segment.size = segment.end() - last.segment.address;
                    last.mapped_bytes = last.mapped_bytes.saturating_add(segment.size);
                    last.part_count += 1;
                }
                None => list.push(Region {
                    segment,
                    mapped_bytes: segment.size,
                    first_part: u32::try_from(parts.len()).unwrap_or(u32::MAX),
                    part_count: 1,
                }),
            }
            parts.push(segment.address..segment.end());
        }
        Self { list, parts }
    }

    /// Returns the regions by ascending address.
    pub(super) fn list(&self) -> &[Region] {
        &self.list
    }

    /// Returns the mapped address ranges of a region, in ascending order.
    pub(super) fn parts(&self, region: &Region) -> &[Range<u64>] {
        let first = region.first_part as usize;
        self.parts.get(first..first + region.part_count as usize).unwrap_or_default()
    }

    /// Returns the index in [`list`](Self::list) of the region that contains `address`, also in a
    /// hole; `None` if no region does.
    pub(super) fn index_at(&self, address: u64) -> Option<usize> {
        let after = self.list.partition_point(|region| region.segment.address <= address);
        after.checked_sub(1).filter(|&index| address < self.list[index].segment.end())
    }

    /// Returns the indexes in [`list`](Self::list) of all regions, sorted by `sort`.
    pub(super) fn sorted(&self, device: &DeviceState, sort: SortBy) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.list.len() as u32).collect();
        let region = |index: &u32| &self.list[*index as usize];
        match sort {
            SortBy::Address => {}
            SortBy::Size => sort_by_key(&mut order, |index| Reverse(region(index).mapped_bytes)),
            SortBy::Pool => sort_by_key(&mut order, |index| {
                let Segment { pool, stream, .. } = region(index).segment;
                let MempoolId(a, b) = pool.owner;
                (a, b, pool.kind == PoolKind::Large, stream)
            }),
            SortBy::FreeShare => {
                let shares = self.free_shares(device);
                sort_by(&mut order, |&a, &b| shares[b as usize].total_cmp(&shares[a as usize]));
            }
        }
        order
    }

    /// Returns the free share of each region's mapped bytes, from 0 to 1. Visits every block once.
    fn free_shares(&self, device: &DeviceState) -> Vec<f64> {
        let mut live_bytes = vec![0u64; self.list.len()];
        let mut index = 0;
        for block in device.blocks() {
            while self.list.get(index).is_some_and(|region| region.segment.end() <= block.address) {
                index += 1;
            }
            if let Some(live) = live_bytes.get_mut(index) {
                *live = live.saturating_add(block.size);
            }
        }
        let share = |(region, live): (&Region, u64)| 1.0 - live as f64 / region.mapped_bytes.max(1) as f64;
        self.list.iter().zip(live_bytes).map(share).collect()
    }
}

/// Returns true if `next`, the segment that follows `region` in address order, is a part of the
/// same expandable segment.
fn is_continued(region: &Region, next: &Segment) -> bool {
    let known = &region.segment;
    let is_same = known.expandable && next.expandable && (known.stream, known.pool) == (next.stream, next.pool);
    is_same && next.address - known.end() <= region.mapped_bytes.saturating_add(next.size)
}
