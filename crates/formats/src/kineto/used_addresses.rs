//! The address ranges that blocks have used, where no segments are recorded.

use std::collections::BTreeMap;

use crate::limits::{LimitExceeded, MemoryBudget};

/// Estimated memory of a range in a table, in bytes.
pub(super) const RANGE_BYTES: usize = 48;

/// Address ranges that are or were in use: live blocks, and free memory between them.
#[derive(Debug, Default)]
pub(super) struct UsedAddresses {
    /// Live blocks: from start to end (exclusive).
    live: BTreeMap<u64, u64>,
    /// Ranges that blocks have used before. No two of them touch.
    free: BTreeMap<u64, u64>,
    live_bytes: u64,
    free_bytes: u64,
}

impl UsedAddresses {
    /// Returns the bytes of live blocks.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the bytes of all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.free_bytes)
    }

    /// Returns the start and end of all ranges, in no order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live.iter().chain(&self.free).map(|(start, end)| (*start, *end))
    }

    /// Returns the size of the live block at an address.
    pub(super) fn live_block(&self, start: u64) -> Option<u64> {
        Some(self.live.get(&start)? - start)
    }

    /// Removes a live block that overlaps a range, and returns its address; `None` if none does.
    pub(super) fn evict(&mut self, start: u64, end: u64) -> Option<u64> {
        let (&below, _) = self.live.range(..end).next_back().filter(|(_, last)| **last > start)?;
        self.free(below);
        Some(below)
    }

    /// Adds a live block that overlaps no other, and passes the parts of it that no block has used
    /// before to `map`.
    pub(super) fn allocate(
        &mut self,
        (start, end): (u64, u64),
        budget: &mut MemoryBudget,
        mut map: impl FnMut(u64, u64),
    ) -> Result<(), LimitExceeded> {
        let mut unused_end = end;
        while let Some((&first, &last)) = self.free.range(..end).next_back()
            && last > start
        {
            self.free.remove(&first);
            self.free_bytes -= last - first;
            if last < unused_end {
                map(last, unused_end);
            }
            unused_end = first.max(start).min(unused_end);
            for (rest, rest_end) in [(first, start), (end, last)] {
                if rest < rest_end {
                    self.free.insert(rest, rest_end);
                    self.free_bytes += rest_end - rest;
                }
            }
            if first <= start {
                break;
            }
        }
        if start < unused_end {
            map(start, unused_end);
        }
        budget.spend(RANGE_BYTES)?;
        self.live.insert(start, end);
        self.live_bytes += end - start;
        Ok(())
    }

    /// Makes a live block free. Returns its size; `None` if no live block begins there.
    pub(super) fn free(&mut self, start: u64) -> Option<u64> {
        let end = self.live.remove(&start)?;
        let size = end - start;
        self.live_bytes -= size;
        self.free_bytes += size;
        let (mut first, mut last) = (start, end);
        if let Some((&below, &below_end)) = self.free.range(..start).next_back()
            && below_end == start
        {
            self.free.remove(&below);
            first = below;
        }
        if let Some(above_end) = self.free.remove(&end) {
            last = above_end;
        }
        self.free.insert(first, last);
        Some(size)
    }

    /// Removes at most `bytes` of the highest free range. Returns the removed range; `None` if
    /// nothing is free.
    pub(super) fn shrink(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let (start, end) = self.free.pop_last()?;
        let removed = (end - start).min(bytes);
        self.free_bytes -= removed;
        let first = end - removed;
        if start < first {
            self.free.insert(start, first);
        }
        Some((first, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_no_block_has_used_are_mapped() {
        let (mut used, mut budget, mut mapped) = (UsedAddresses::default(), MemoryBudget::new(1 << 20), Vec::new());
        let mut allocate = |used: &mut UsedAddresses, start, end| {
            used.allocate((start, end), &mut budget, |from, to| mapped.push((from, to))).expect("the budget suffices");
            std::mem::take(&mut mapped)
        };
        assert_eq!(allocate(&mut used, 10, 20), [(10, 20)]);
        assert_eq!(allocate(&mut used, 30, 40), [(30, 40)]);
        assert_eq!((used.free(10), used.free(30), used.free(50)), (Some(10), Some(10), None));
        assert_eq!(allocate(&mut used, 5, 45), [(40, 45), (20, 30), (5, 10)]);
        assert_eq!((used.bytes(), used.live_bytes()), (40, 40));
        assert_eq!((used.evict(44, 50), used.evict(44, 50)), (Some(5), None));
        assert_eq!(allocate(&mut used, 10, 12), []);
        assert_eq!((used.bytes(), used.live_bytes()), (40, 2));
        assert_eq!(used.shrink(3), Some((42, 45)));
        assert_eq!(used.shrink(100), Some((12, 42)));
        assert_eq!(used.shrink(100), Some((5, 10)));
        assert_eq!((used.shrink(1), used.bytes()), (None, 2));
    }
}
