//! A list for millions of items that grows without copying them.

use std::ops::Range;

use crate::limits::{LimitExceeded, MemoryBudget};

/// Size of the pages of a [`PagedList`], in bytes. With pages of 512 KiB, an import would grow
/// WebAssembly's memory 300 times, which takes a third of its time in a browser.
const PAGE_BYTES: usize = 8 << 20;

/// A list that grows by pages of [`PAGE_BYTES`].
///
/// A `Vec` of millions of items briefly takes twice its memory while it grows, and WebAssembly
/// never returns memory to the browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagedList<T> {
    /// All pages but the last have [`PAGE_ITEMS`](Self::PAGE_ITEMS) items; the last one has at
    /// least one.
    pages: Vec<Vec<T>>,
}

impl<T> Default for PagedList<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T> PagedList<T> {
    /// Number of items in a full page of the list: a power of two.
    const PAGE_ITEMS: usize = 1 << (PAGE_BYTES / size_of::<T>()).ilog2();

    /// Returns the number of items.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self.pages.split_last() {
            Some((last, full)) => full.len() * Self::PAGE_ITEMS + last.len(),
            None => 0,
        }
    }

    /// Returns true if the list has no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the item at `index`; `None` beyond the end.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.pages.get(index / Self::PAGE_ITEMS)?.get(index % Self::PAGE_ITEMS)
    }

    /// Returns the item at `index` mutably; `None` beyond the end.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pages.get_mut(index / Self::PAGE_ITEMS)?.get_mut(index % Self::PAGE_ITEMS)
    }

    /// Appends an item. The memory of new pages is subtracted from the budget; fails if the budget
    /// has less.
    #[inline]
    pub(crate) fn push(&mut self, item: T, budget: &mut MemoryBudget) -> Result<(), LimitExceeded> {
        match self.pages.last_mut() {
            Some(page) if page.len() < page.capacity() && page.len() < Self::PAGE_ITEMS => {
                page.push(item);
                Ok(())
            }
            _ => self.push_growing(item, budget),
        }
    }

    /// Appends an item if the last page is full or has to grow; the slow path of
    /// [`push`](Self::push).
    #[cold]
    fn push_growing(&mut self, item: T, budget: &mut MemoryBudget) -> Result<(), LimitExceeded> {
        let is_first = self.pages.len() == 1;
        match self.pages.last_mut() {
            // The first page grows step by step: most lists are short.
            Some(page) if is_first && page.len() < Self::PAGE_ITEMS => budget.push(page, item),
            Some(_) => {
                budget.spend(Self::PAGE_ITEMS * size_of::<T>())?;
                let mut page = Vec::new();
                page.try_reserve_exact(Self::PAGE_ITEMS).map_err(|_| LimitExceeded)?;
                page.push(item);
                self.pages.push(page);
                Ok(())
            }
            None => {
                let mut page = Vec::new();
                budget.push(&mut page, item)?;
                self.pages.push(page);
                Ok(())
            }
        }
    }

    /// Returns the items in a range of indices as consecutive slices, none of them empty;
    /// items beyond the end are left out.
    pub(crate) fn slices(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = &[T]> + use<'_, T> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        let pages = start / Self::PAGE_ITEMS..end.div_ceil(Self::PAGE_ITEMS);
        pages.filter_map(move |number| {
            let first = number * Self::PAGE_ITEMS;
            let page = self.pages.get(number)?;
            page.get(start.saturating_sub(first)..(end - first).min(Self::PAGE_ITEMS)).filter(|slice| !slice.is_empty())
        })
    }

    /// Returns the items in a range of indices, in order; items beyond the end are left out.
    pub(crate) fn range(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = &T> + use<'_, T> {
        self.slices(range).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_ITEMS: usize = PagedList::<usize>::PAGE_ITEMS;

    #[test]
    fn pages_hold_all_items_in_order() {
        let mut budget = MemoryBudget::new(1 << 30);
        let mut list = PagedList::default();
        assert_eq!((list.len(), list.is_empty(), list.get(0)), (0, true, None));
        let count = 3 * PAGE_ITEMS + 5;
        for number in 0..count {
            list.push(number, &mut budget).expect("the budget suffices");
        }
        assert_eq!(list.len(), count);
        for index in [0, 1, PAGE_ITEMS - 1, PAGE_ITEMS, count - 1] {
            assert_eq!(list.get(index), Some(&index));
        }
        *list.get_mut(PAGE_ITEMS).expect("the item exists") = 7;
        assert_eq!(list.get(PAGE_ITEMS), Some(&7));
        assert!(list.get(count).is_none() && list.get_mut(count).is_none());
        *list.get_mut(PAGE_ITEMS).expect("the item exists") = PAGE_ITEMS;
        for range in [0..0, 0..count, 5..PAGE_ITEMS, PAGE_ITEMS..PAGE_ITEMS, PAGE_ITEMS - 1..2 * PAGE_ITEMS + 1] {
            assert!(list.range(range.clone()).copied().eq(range.clone()), "{range:?}");
            assert!(list.range(range.clone()).rev().copied().eq(range.clone().rev()), "{range:?}");
        }
        assert!(list.range(count - 1..count + 9).eq(&[count - 1]));
        assert_eq!(list.slices(count..count + 9).count(), 0);
    }

    #[test]
    fn new_pages_spend_the_budget() {
        let mut budget = MemoryBudget::new(8 * (PAGE_ITEMS as u64) * 3);
        let mut list = PagedList::<u64>::default();
        let pushed = (0..10 * PAGE_ITEMS as u64).take_while(|&number| list.push(number, &mut budget).is_ok()).count();
        assert_eq!(list.len(), pushed);
        assert!((2 * PAGE_ITEMS..=3 * PAGE_ITEMS).contains(&pushed), "{pushed}");
    }
}
