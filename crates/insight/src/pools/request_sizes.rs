//! The sizes that a program requests, and which of them fit into a free block.

use foldhash::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{DeviceLifetimes, DeviceState, PoolKind};

/// Maximum number of sizes of a pool kind that are counted exactly. Further sizes are rounded.
const MAX_EXACT_SIZES: usize = 1 << 16;

/// The bytes that a program requests from the small and from the large pool, by size.
///
/// The two pools are counted apart, because a free block serves requests of its own pool only. The
/// size of a request is the size of its block, with rounding.
#[derive(Clone, Debug, Default)]
pub struct RequestSizes {
    /// Bytes of the requests of each size, for each pool kind.
    bytes: [HashMap<u64, u64>; 2],
    /// The first row of the lifetimes that has not been added.
    next_row: u32,
}

/// Returns a size with its four highest bits; the others are 0.
fn rounded(bytes: u64) -> u64 {
    let low_bits = bytes.max(1).ilog2().saturating_sub(3);
    bytes >> low_bits << low_bits
}

/// Returns the index of a pool kind.
const fn kind_index(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Small => 0,
        PoolKind::Large => 1,
    }
}

impl RequestSizes {
    /// Returns the sizes of the live blocks of a device, for a recording without history.
    #[must_use]
    pub fn of_blocks(device: &DeviceState) -> Self {
        let mut sizes = Self::default();
        for block in device.blocks() {
            sizes.add(block.pool.kind, block.size);
        }
        sizes
    }

    /// Adds up to `max_rows` further allocations of a device (at least one). Returns true once all
    /// are added.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, max_rows: u32) -> bool {
        let rows = u32::try_from(lifetimes.len()).unwrap_or(u32::MAX);
        let end = self.next_row.saturating_add(max_rows.max(1)).min(rows);
        let kinds: Vec<PoolKind> = lifetimes.origins().map(|origin| origin.pool.kind).collect();
        lifetimes.for_each_row(self.next_row..end, |row| {
            let kind = kinds.get(row.origin as usize).copied().unwrap_or_default();
            self.add(kind, row.size);
        });
        self.next_row = end;
        end == rows
    }

    /// Returns the number of allocations that have been added by [`step`](Self::step).
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.next_row
    }

    /// Counts a request whose block has `bytes` bytes.
    fn add(&mut self, kind: PoolKind, bytes: u64) {
        let sizes = &mut self.bytes[kind_index(kind)];
        let size = if sizes.len() < MAX_EXACT_SIZES || sizes.contains_key(&bytes) { bytes } else { rounded(bytes) };
        let sum = sizes.entry(size).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Returns the share of the requested bytes that is in requests too large for a free block of
    /// each size, for a quick lookup.
    #[must_use]
    pub fn unfit_shares(&self) -> UnfitShares {
        UnfitShares(self.bytes.each_ref().map(|bytes_by_size| {
            let mut sizes: Vec<(u64, u64)> = bytes_by_size.iter().map(|(&size, &bytes)| (size, bytes)).collect();
            sort_by_key(&mut sizes, |&(size, _)| size);
            let total = sizes.iter().fold(0u64, |sum, &(_, bytes)| sum.saturating_add(bytes));
            let mut larger = total;
            let mut shares = Vec::with_capacity(sizes.len());
            for (size, bytes) in sizes {
                larger = larger.saturating_sub(bytes);
                shares.push((size, larger as f32 / total.max(1) as f32));
            }
            shares
        }))
    }
}

/// For each size of a free block, how much of the requested bytes it cannot serve.
#[derive(Clone, Debug)]
pub struct UnfitShares(
    /// For each pool kind, the requested sizes in ascending order, each with the share of the bytes
    /// in larger requests.
    [Vec<(u64, f32)>; 2],
);

impl UnfitShares {
    /// Returns the share of the requested bytes (0 to 1) in requests that are larger than a free
    /// block of `bytes` bytes in a pool of this kind; 1 if no request is known.
    #[must_use]
    pub fn of(&self, kind: PoolKind, bytes: u64) -> f32 {
        let shares = &self.0[kind_index(kind)];
        let fitting = shares.partition_point(|&(size, _)| size <= bytes);
        fitting.checked_sub(1).map_or(1.0, |last| shares[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_larger_requests_do_not_fit() {
        let mut sizes = RequestSizes::default();
        [1000, 1000, 1001, 5999].into_iter().for_each(|bytes| sizes.add(PoolKind::Large, bytes));
        let shares = sizes.unfit_shares();
        let percents = [999, 1000, 1001, 5998, 5999].map(|bytes| shares.of(PoolKind::Large, bytes) * 100.0);
        let expected = [100.0, 7000.0 / 90.0, 5999.0 / 90.0, 5999.0 / 90.0, 0.0];
        assert!(percents.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-3), "{percents:?}");
        assert_eq!(shares.of(PoolKind::Small, 1 << 30), 1.0, "no request is known");
    }

    #[test]
    fn very_many_sizes_are_rounded() {
        let mut sizes = RequestSizes::default();
        (1..2_000_000).for_each(|units| sizes.add(PoolKind::Small, units * 512));
        assert!(sizes.bytes[0].len() <= MAX_EXACT_SIZES + 64 * 8);
    }
}
