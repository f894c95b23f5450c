//! An index of allocations by size and lifetime.

use crate::composition::{AllocationRows, AllocationSpan};

/// Number of size classes and of lifetime classes: one for every power of two.
const CLASSES: usize = 64;

/// An index to find the allocations of at least a given size that are live at any of many moments.
///
/// Ended allocations are listed by size class and lifetime class (powers of two), in the order of
/// their ends. In a list with lifetimes of 2ˡ to 2ˡ⁺¹ events, an allocation that is live at a
/// moment ends within 2ˡ⁺¹ events after it, and at least half of the allocations that end in this
/// range are live: the cost of a search is linear in the number of allocations found, however many
/// short-lived ones lie between the moments. Takes 8 bytes for every allocation.
#[derive(Clone, Debug)]
pub struct BandIndex {
    classes: Vec<SizeClass>,
    /// The moment of the first change.
    origin: u64,
    /// Number of changes added.
    changes: usize,
}

/// Rows of ended allocations, in the order of their ends.
#[derive(Clone, Debug, Default)]
struct EndedList {
    rows: Vec<u32>,
    /// End of each allocation, as the number of moments after the index's first one, so that a
    /// search need not read the rows. `u32::MAX` stands for that and all later ends.
    ends: Vec<u32>,
}

impl EndedList {
    /// Returns the end of the allocation at `position`, or `None` beyond the last one. `origin` is
    /// the first moment of the index.
    #[inline]
    fn end(&self, rows: &impl AllocationRows, origin: u64, position: usize) -> Option<u64> {
        let end = *self.ends.get(position)?;
        Some(if end < u32::MAX { origin.saturating_add(u64::from(end)) } else { rows.span(self.rows[position]).end })
    }

    /// Returns the position of the first allocation from `from` on that ends after `moment`. Fast
    /// if that is near `from`.
    fn first_after(&self, rows: &impl AllocationRows, origin: u64, from: usize, moment: u64) -> usize {
        match u32::try_from(moment.saturating_sub(origin)) {
            Ok(distance) if distance < u32::MAX => gallop(&self.ends, from, |&end| end <= distance),
            _ => gallop(&self.rows, from, |&row| rows.span(row).end <= moment),
        }
    }
}

/// The allocations of one size class.
#[derive(Clone, Debug, Default)]
struct SizeClass {
    /// The ended allocations, by lifetime class.
    ended: Vec<EndedList>,
    /// Rows of the allocations that are live at the end, in the order of their starts. Ended ones
    /// are removed later, so that removal costs little.
    open: Vec<u32>,
    /// Number of rows in `open` that have ended.
    stale: usize,
}

impl SizeClass {
    /// Removes the ended rows from `open` if they are most of it.
    fn remove_stale(&mut self, rows: &impl AllocationRows) {
        /// Minimum number of ended rows that are removed together.
        const MIN_STALE: usize = 32;
        if self.stale >= MIN_STALE.max(self.open.len() / 2) {
            self.open.retain(|&row| rows.span(row).end == u64::MAX);
            self.stale = 0;
        }
    }
}

impl Default for BandIndex {
    fn default() -> Self {
        Self { classes: vec![SizeClass::default(); CLASSES], origin: 0, changes: 0 }
    }
}

impl BandIndex {
    /// Creates an index without allocations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds up to `max_changes` further changes of `rows`, and returns true if none are left. Takes
    /// about 40 ns a change. Searches of this index must read from `rows`, too.
    pub fn step(&mut self, rows: &impl AllocationRows, max_changes: usize) -> bool {
        let until = rows.change_count().min(self.changes.saturating_add(max_changes.max(1)));
        while self.changes < until {
            let change = rows.change(self.changes);
            if self.changes == 0 {
                self.origin = change.moment;
            }
            self.changes += 1;
            if change.is_relabel {
                continue;
            }
            let Some(size_class) = change.bytes.checked_ilog2() else { continue };
            let class = &mut self.classes[size_class as usize];
            if change.is_start {
                class.open.push(change.row);
                continue;
            }
            class.stale += 1;
            if let Some(lifetime_class) =
                change.moment.saturating_sub(rows.span(change.row).first_moment).checked_ilog2()
            {
                let lifetime_class = lifetime_class as usize;
                if class.ended.len() <= lifetime_class {
                    class.ended.resize_with(lifetime_class + 1, EndedList::default);
                }
                let list = &mut class.ended[lifetime_class];
                list.rows.push(change.row);
                list.ends.push(u32::try_from(change.moment.saturating_sub(self.origin)).unwrap_or(u32::MAX));
            }
            class.remove_stale(rows);
        }
        self.changes >= rows.change_count()
    }

    /// Returns the memory that the index occupies, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let lists = |class: &SizeClass| {
            let ended: usize = class
                .ended
                .iter()
                .map(|list| size_of::<EndedList>() + 4 * (list.rows.capacity() + list.ends.capacity()))
                .sum();
            size_of::<SizeClass>() + 4 * class.open.capacity() + ended
        };
        self.classes.iter().map(lists).sum()
    }
}

/// An allocation found by a [`Search`], with the columns at whose moments it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Row number.
    pub(crate) row: u32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Group number.
    pub(crate) group: u32,
    /// The first column at whose moment it is live.
    pub(crate) first_column: u32,
    /// The first column in which it is not live any more.
    pub(crate) end_column: u32,
}

/// A search, in steps, for the allocations of one size class that are live at any of several
/// moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    size_class: usize,
    /// Index of the list: a lifetime class; after the last one, the allocations not ended.
    list: usize,
    /// Position in the list of the allocation to read next.
    position: usize,
    /// Whether `position` has been set for the list.
    is_begun: bool,
}

impl Search {
    /// Creates a search in the class of sizes from 2ᵏ to 2ᵏ⁺¹ − 1 bytes, where k is `size_class`.
    pub(crate) fn new(size_class: usize) -> Self {
        Self { size_class, list: 0, position: 0, is_begun: false }
    }

    /// Calls `found` for further allocations of at least `min_size` bytes that are live at some of
    /// `moments`, which must not decrease, and returns true if all were found. Stops after reading
    /// about `max_rows` allocations, or if `found` returns false. The order is unspecified.
    ///
    /// Pass the arguments unchanged in all steps of a search.
    pub(crate) fn step(
        &mut self,
        (index, rows): (&BandIndex, &impl AllocationRows),
        moments: &[u64],
        min_size: u64,
        max_rows: usize,
        mut found: impl FnMut(Candidate) -> bool,
    ) -> bool {
        let (Some(class), Some(&first), Some(&last)) =
            (index.classes.get(self.size_class), moments.first(), moments.last())
        else {
            return true;
        };
        let mut left = max_rows.max(1);
        while let Some(list) = class.ended.get(self.list) {
            // An allocation that ends later began after the last moment.
            let latest_end = last.saturating_add(2u64.checked_shl(self.list as u32).unwrap_or(u64::MAX));
            if !self.is_begun {
                self.position = list.first_after(rows, index.origin, 0, first);
                self.is_begun = true;
            }
            // The first column whose moment is not before the end at the position.
            let mut column = 0;
            while let Some(end) = list.end(rows, index.origin, self.position) {
                if left == 0 {
                    return false;
                }
                left -= 1;
                if end > latest_end {
                    break;
                }
                column = gallop(moments, column, |&moment| moment < end);
                // If the allocation and all that end up to the next moment began after the last
                // moment, none of them is live at any.
                let lifetime_end = 2u64.checked_shl(self.list as u32).unwrap_or(u64::MAX);
                if column == 0 || end - moments[column - 1] >= lifetime_end {
                    self.position = match moments.get(column) {
                        Some(&next) => list.first_after(rows, index.origin, self.position, next),
                        None => break,
                    };
                    continue;
                }
                let row = list.rows[self.position];
                self.position += 1;
                let AllocationSpan { first_moment: start, size, group, .. } = rows.span(row);
                if moments[column - 1] >= start && size >= min_size {
                    let first_column = column - gallop_back(&moments[..column], |&moment| moment >= start);
                    let candidate =
                        Candidate { row, size, group, first_column: first_column as u32, end_column: column as u32 };
                    if !found(candidate) {
                        return false;
                    }
                }
            }
            self.list += 1;
            self.position = 0;
            self.is_begun = false;
        }
        while let Some(&row) = class.open.get(self.position) {
            if left == 0 {
                return false;
            }
            left -= 1;
            let AllocationSpan { first_moment: start, end, size, group } = rows.span(row);
            if start > last {
                break;
            }
            self.position += 1;
            // Skip allocations that have ended: they were found in a list of ended allocations.
            if end == u64::MAX && size >= min_size {
                let first_column = moments.partition_point(|&moment| moment < start) as u32;
                let candidate = Candidate { row, size, group, first_column, end_column: moments.len() as u32 };
                if !found(candidate) {
                    return false;
                }
            }
        }
        true
    }
}

/// Returns the index of the first of `items` from `from` on for which `is_before` is false, given
/// that items for which it is true come first. Fast if the index is near.
fn gallop<T>(items: &[T], from: usize, is_before: impl Fn(&T) -> bool) -> usize {
    let mut reach = 1;
    let mut low = from;
    while let Some(item) = items.get(low + reach - 1)
        && is_before(item)
    {
        low += reach;
        reach *= 2;
    }
    let high = items.len().min(low + reach - 1);
    low + items[low..high].partition_point(is_before)
}

/// Returns how many of the last `items` satisfy `is_after`, given that items that satisfy it come
/// last. Fast if they are few.
fn gallop_back<T>(items: &[T], is_after: impl Fn(&T) -> bool) -> usize {
    let mut reach = 1;
    let mut high = items.len();
    while high >= reach && is_after(&items[high - reach]) {
        high -= reach;
        reach *= 2;
    }
    let low = high.saturating_sub(reach);
    items.len() - low - items[low..high].partition_point(|item| !is_after(item))
}
