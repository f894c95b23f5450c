//! The free blocks of one stream in one pool, in best-fit order: by size, then by address.
//!
//! PyTorch uses a red-black tree. Here, blocks are in bins of similar size, so that most searches
//! end at a bin's first block. Up to 16 KiB each size has a bin; above, each power of two has 32
//! bins. The other blocks of a bin are in a sorted list, or in a tree if there are many, so that
//! the cost of an operation stays logarithmic in the number of free blocks.

use std::collections::BTreeMap;

use crate::index::BlockIndex;
use crate::size::MIN_BLOCK_BYTES;

/// The sort key of a free block in best-fit order: its size in bytes, then its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FitKey {
    pub(crate) size: u64,
    pub(crate) address: u64,
}

/// A free block: its size and address as the sort key, and its index in the arena of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) key: FitKey,
    pub(crate) index: BlockIndex,
}

/// The binary logarithm of the number of bins for each power of two of block sizes (32 bins).
const STEP_BITS: u32 = 5;
/// Number of bins, each for free blocks of similar size: enough for sizes below 2^61 bytes; the
/// pool refuses larger requests.
const BINS: usize = 48 << STEP_BITS;
/// Maximum number of free blocks that a bin keeps in a sorted list, besides its first; a longer
/// list becomes a tree. The gap to [`TREE_MIN`] avoids frequent conversions. Moving half of 64
/// entries of 24 bytes takes less time than a tree operation.
const LIST_MAX: usize = 64;
/// Minimum number of free blocks, besides the first, that a bin keeps in a tree; a smaller tree
/// becomes a list.
const TREE_MIN: usize = 16;

/// Returns the index of the bin for free blocks of `size` bytes. A larger size never has a lower
/// index.
#[inline]
fn bin_of(size: u64) -> usize {
    let units = size / MIN_BLOCK_BYTES;
    let bits = units.max(1).ilog2();
    let bin = match bits.checked_sub(STEP_BITS) {
        None => units as usize,
        Some(shift) => ((shift as usize + 1) << STEP_BITS) + ((units >> shift) as usize & ((1 << STEP_BITS) - 1)),
    };
    bin.min(BINS - 1)
}

/// Returns the smallest size in bytes, as a multiple of [`MIN_BLOCK_BYTES`], that
/// [`bin_of`] maps to the bin.
fn smallest_size_of(bin: usize) -> u64 {
    let (row, step) = (bin >> STEP_BITS, (bin & ((1 << STEP_BITS) - 1)) as u64);
    let units = match row.checked_sub(1) {
        None => step,
        Some(shift) => (1 << STEP_BITS | step) << shift,
    };
    units * MIN_BLOCK_BYTES
}

/// Free blocks of similar size. Most bins hold at most one block, which is found without following
/// a pointer.
///
/// The first block is stored as separate fields, not as a [`Fit`]: copying a whole struct right
/// after its fields were written takes ten times as long, because the wide load waits for the
/// narrow stores to reach the cache.
#[derive(Clone, Debug, Default)]
struct Bin {
    /// The first block in best-fit order. If `None`, `size` and `address` are meaningless.
    index: Option<BlockIndex>,
    size: u64,
    address: u64,
    /// The blocks after the first.
    rest: BinRest,
}

/// The free blocks of a bin without the first, in best-fit order (by size, then address): a list if
/// they are few, a tree if they are many.
#[derive(Clone, Debug)]
enum BinRest {
    /// In reverse order, so that the first block is removed from the end.
    List(Vec<Fit>),
    Tree(BTreeMap<FitKey, BlockIndex>),
}

impl Default for BinRest {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl BinRest {
    /// Inserts a block; a list that then has more than [`LIST_MAX`] blocks becomes a tree.
    #[inline(never)]
    fn insert(&mut self, key: FitKey, index: BlockIndex) {
        match self {
            Self::List(list) => {
                let position = list.partition_point(|other| other.key > key);
                list.insert(position, Fit { key, index });
                if list.len() > LIST_MAX {
                    // Not `collect`: it would add another sort function to the page's WebAssembly
                    // file.
                    let mut tree = BTreeMap::new();
                    for fit in &*list {
                        tree.insert(fit.key, fit.index);
                    }
                    *self = Self::Tree(tree);
                }
            }
            Self::Tree(tree) => {
                tree.insert(key, index);
            }
        }
    }

    /// Removes the free block with this key (size, then address), which must be in the list or
    /// tree.
    #[inline(never)]
    fn remove(&mut self, key: FitKey) {
        match self {
            Self::List(list) => {
                let position = list.partition_point(|other| other.key > key);
                debug_assert_eq!(
                    list.get(position).map(|fit| fit.key),
                    Some(key),
                    "a free block is in its stream pool"
                );
                list.remove(position);
            }
            Self::Tree(tree) => {
                let before = tree.remove(&key);
                debug_assert!(before.is_some(), "a free block is in its stream pool");
                self.shrink();
            }
        }
    }

    /// Removes and returns the smallest block, of equal sizes the one at the lowest address; `None`
    /// if there are no blocks.
    fn pop_first(&mut self) -> Option<Fit> {
        match self {
            Self::List(list) => list.pop(),
            Self::Tree(tree) => {
                let first = tree.pop_first().map(|(key, index)| Fit { key, index });
                self.shrink();
                first
            }
        }
    }

    /// Converts the tree of a bin's free blocks to a list if it has fewer than [`TREE_MIN`] blocks.
    fn shrink(&mut self) {
        if let Self::Tree(tree) = self
            && tree.len() < TREE_MIN
        {
            *self = Self::List(tree.iter().rev().map(|(&key, &index)| Fit { key, index }).collect());
        }
    }

    /// Returns the smallest block of at least `size` bytes, of equal sizes the one at the lowest
    /// address; `None` if all blocks are smaller.
    #[inline(never)]
    fn best_fit(&self, size: u64) -> Option<BlockIndex> {
        self.at_or_after(FitKey { size, address: 0 }).map(|fit| fit.index)
    }

    /// Returns the block with the lowest key (size, then address) that is at least `key`, or
    /// `None`.
    fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        match self {
            Self::List(list) => list[..list.partition_point(|other| other.key >= key)].last().copied(),
            Self::Tree(tree) => tree.range(key..).next().map(|(&key, &index)| Fit { key, index }),
        }
    }

    /// Returns the block with the highest key (size, then address) that is less than `key`, or
    /// `None`.
    fn before(&self, key: FitKey) -> Option<Fit> {
        match self {
            Self::List(list) => list.get(list.partition_point(|other| other.key >= key)).copied(),
            Self::Tree(tree) => tree.range(..key).next_back().map(|(&key, &index)| Fit { key, index }),
        }
    }
}

impl Bin {
    /// Returns the bin's smallest block, of equal sizes the one at the lowest address; `None` if
    /// the bin is empty.
    fn first(&self) -> Option<Fit> {
        let &Self { size, address, .. } = self;
        self.index.map(|index| Fit { key: FitKey { size, address }, index })
    }

    /// Overwrites the fields that hold the bin's first block in best-fit order. The block in them
    /// before is lost.
    #[inline]
    fn set_first(&mut self, size: u64, address: u64, index: BlockIndex) {
        (self.size, self.address, self.index) = (size, address, Some(index));
    }

    /// Inserts a free block of `size` bytes at `address`. If its key (size, then address) is the
    /// lowest of the bin, it becomes the bin's first block.
    #[inline]
    fn insert(&mut self, size: u64, address: u64, index: BlockIndex) {
        match self.index {
            None => self.set_first(size, address, index),
            Some(_) if (self.size, self.address) < (size, address) => {
                self.rest.insert(FitKey { size, address }, index);
            }
            Some(first) => {
                self.rest.insert(FitKey { size: self.size, address: self.address }, first);
                self.set_first(size, address, index);
            }
        }
    }

    /// Removes a free block, which must be in the bin. Returns true if the bin is empty afterwards.
    #[inline]
    fn remove(&mut self, size: u64, address: u64, index: BlockIndex) -> bool {
        if self.index != Some(index) {
            self.rest.remove(FitKey { size, address });
            return false;
        }
        if matches!(&self.rest, BinRest::List(list) if list.is_empty()) {
            self.index = None;
            return true;
        }
        self.promote_next();
        false
    }

    /// Makes the bin's second block in best-fit order its first, which was removed. There must be a
    /// second block.
    #[inline(never)]
    fn promote_next(&mut self) {
        if let Some(Fit { key, index }) = self.rest.pop_first() {
            self.set_first(key.size, key.address, index);
        }
    }

    /// Returns the smallest block of at least `size` bytes, of equal sizes the one at the lowest
    /// address; `None` if all blocks of the bin are smaller.
    #[inline]
    fn best_fit(&self, size: u64) -> Option<BlockIndex> {
        if self.size >= size { self.index } else { self.rest.best_fit(size) }
    }

    /// Returns the block of the bin with the lowest key (size, then address) that is at least
    /// `key`, or `None`.
    fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        match self.first() {
            Some(first) if first.key < key => self.rest.at_or_after(key),
            first => first,
        }
    }

    /// Returns the block of the bin with the highest key (size, then address) that is less than
    /// `key`, or `None`.
    fn before(&self, key: FitKey) -> Option<Fit> {
        self.rest.before(key).or(self.first().filter(|first| first.key < key))
    }

    /// Iterates over all blocks of the bin by size, then address.
    fn iter(&self) -> impl Iterator<Item = Fit> + '_ {
        let (list, tree) = match &self.rest {
            BinRest::List(list) => (Some(list), None),
            BinRest::Tree(tree) => (None, Some(tree)),
        };
        let list = list.into_iter().flat_map(|list| list.iter().rev().copied());
        let tree = tree.into_iter().flatten().map(|(&key, &index)| Fit { key, index });
        self.first().into_iter().chain(list).chain(tree)
    }
}

/// The free blocks of one stream in one pool, in best-fit order: by size, then address. Blocks of
/// similar size share a bin, so that most searches end at a bin's first block.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    /// Grows to the largest bin ever used.
    bins: Vec<Bin>,
    /// One bit per bin: whether it holds a block.
    occupied: [u64; BINS / 64],
    /// One bit per word of `occupied`: whether the word is not 0.
    occupied_words: u64,
}

impl FreeBlocks {
    /// Inserts a free block of `size` bytes at `address`. No block at this address may be present.
    #[inline]
    pub(crate) fn insert(&mut self, size: u64, address: u64, index: BlockIndex) {
        let bin = bin_of(size);
        if bin >= self.bins.len() {
            self.grow(bin);
        }
        self.bins[bin].insert(size, address, index);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.occupied_words |= 1 << (bin / 64);
    }

    /// Adds empty bins until the bin with index `bin` exists.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, bin: usize) {
        self.bins.resize_with(bin + 1, Bin::default);
    }

    /// Removes a free block, which must be present with this size and address.
    #[inline]
    pub(crate) fn remove(&mut self, size: u64, address: u64, index: BlockIndex) {
        self.remove_from_bin(bin_of(size), size, address, index);
    }

    /// Removes a free block of `size` bytes at `address` from the bin with index `bin`, which must
    /// contain it.
    #[inline]
    pub(crate) fn remove_from_bin(&mut self, bin: usize, size: u64, address: u64, index: BlockIndex) {
        if self.bins[bin].remove(size, address, index) {
            let bits = &mut self.occupied[bin / 64];
            *bits &= !(1 << (bin % 64));
            if *bits == 0 {
                self.occupied_words &= !(1 << (bin / 64));
            }
        }
    }

    /// Returns the smallest block of at least `size` bytes, of equal sizes the one at the lowest
    /// address, as the index of its bin and its own; `None` if all blocks are smaller.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<(usize, BlockIndex)> {
        let bin = self.first_occupied(bin_of(size))?;
        if let Some(index) = self.bins[bin].best_fit(size) {
            return Some((bin, index));
        }
        let bin = self.first_occupied(bin + 1)?;
        self.bins[bin].index.map(|index| (bin, index))
    }

    /// Returns the index of the first bin, from `bin` on, that is not empty; `None` if all of these
    /// are empty.
    #[inline]
    fn first_occupied(&self, bin: usize) -> Option<usize> {
        if bin >= BINS {
            return None;
        }
        let word = bin / 64;
        let bits = self.occupied[word] & (!0 << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let occupied_words = self.occupied_words & (!0 << word) & !(1 << word);
        (occupied_words != 0).then(|| {
            let word = occupied_words.trailing_zeros() as usize;
            word * 64 + self.occupied[word].trailing_zeros() as usize
        })
    }

    /// Returns the index of the last bin, up to and including `bin`, that is not empty; `None` if
    /// all of these are empty.
    fn last_occupied(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.occupied[word] & (!0 >> (63 - bin % 64));
        if bits != 0 {
            return Some(word * 64 + 63 - bits.leading_zeros() as usize);
        }
        let occupied_words = self.occupied_words & ((1 << word) - 1);
        (occupied_words != 0).then(|| {
            let word = 63 - occupied_words.leading_zeros() as usize;
            word * 64 + 63 - self.occupied[word].leading_zeros() as usize
        })
    }

    /// Returns the free block with the lowest key (size, then address) that is at least `key`, or
    /// `None`.
    pub(crate) fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        let bin = self.first_occupied(bin_of(key.size))?;
        self.bins[bin].at_or_after(key).or_else(|| self.bins[self.first_occupied(bin + 1)?].first())
    }

    /// Returns the free block with the highest key (size, then address) that is less than `key`, or
    /// `None`.
    pub(crate) fn before(&self, key: FitKey) -> Option<Fit> {
        let bin = self.last_occupied(bin_of(key.size))?;
        if let Some(fit) = self.bins[bin].before(key) {
            return Some(fit);
        }
        self.bins[self.last_occupied(bin.checked_sub(1)?)?].before(key)
    }

    /// Returns the index of the last bin that is not empty; `None` if there are no free blocks. An
    /// index stands for the same sizes in all pools.
    #[inline]
    pub(crate) fn last_bin(&self) -> Option<usize> {
        let word = self.occupied_words.checked_ilog2()? as usize;
        self.occupied[word].checked_ilog2().map(|bit| word * 64 + bit as usize)
    }

    /// Returns the smallest size, in bytes, of blocks in the last bin that is not empty; 0 without
    /// free blocks.
    pub(crate) fn last_bin_bytes(&self) -> u64 {
        self.last_bin().map_or(0, smallest_size_of)
    }

    /// Returns the largest free block, of equal sizes the one at the highest address; `None` if
    /// there are no free blocks.
    pub(crate) fn last(&self) -> Option<Fit> {
        self.before(FitKey { size: u64::MAX, address: u64::MAX })
    }

    /// Iterates over all free blocks by size, then address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Fit> + '_ {
        self.bins.iter().flat_map(Bin::iter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::tests::block_index;

    #[test]
    fn bins_are_ordered_by_size() {
        let mut last = 0;
        for units in (1..5000u64).chain((13..52).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let bin = bin_of(units * 512);
            assert!(bin >= last && bin < BINS, "{units}");
            last = bin;
        }
        assert_ne!(bin_of(512), bin_of(1024));
        for bin in 1..BINS {
            let size = smallest_size_of(bin);
            assert_eq!((bin_of(size), bin_of(size - 1)), (bin, bin - 1), "bin {bin}");
        }
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    /// Removes a key from both collections if it is present; otherwise inserts it, as the block
    /// with this number.
    fn toggle(free: &mut FreeBlocks, model: &mut BTreeMap<FitKey, BlockIndex>, key: FitKey, number: usize) {
        if let Some(index) = model.remove(&key) {
            free.remove(key.size, key.address, index);
        } else {
            model.insert(key, block_index(number));
            free.insert(key.size, key.address, block_index(number));
        }
    }

    /// Returns an entry of the sorted map as a [`Fit`].
    fn fit_of(entry: Option<(&FitKey, &BlockIndex)>) -> Option<Fit> {
        entry.map(|(&key, &index)| Fit { key, index })
    }

    proptest! {
        /// Insertions, removals and searches give a sorted map's results.
        #[test]
        fn free_blocks_behave_like_a_sorted_map(
            steps in prop::collection::vec((0..400u64, 0..40u64, any::<bool>()), 1..600),
        ) {
            let (mut free, mut model) = (FreeBlocks::default(), BTreeMap::new());
            for (number, (size, address, is_query)) in steps.into_iter().enumerate() {
                let key = FitKey { size: (size * size / 7 + 1) * 512, address: address * 512 };
                if is_query {
                    prop_assert_eq!(free.at_or_after(key), fit_of(model.range(key..).next()));
                    prop_assert_eq!(free.before(key), fit_of(model.range(..key).next_back()));
                    let fit = model.range(FitKey { address: 0, ..key }..).next();
                    let found = fit.map(|(fit, &index)| (bin_of(fit.size), index));
                    prop_assert_eq!(free.best_fit(key.size), found);
                } else {
                    toggle(&mut free, &mut model, key, number);
                }
            }
            prop_assert_eq!(free.last(), fit_of(model.last_key_value()));
            prop_assert_eq!(free.last_bin(), free.last().map(|fit| bin_of(fit.key.size)));
            let all = model.iter().map(|entry| fit_of(Some(entry)));
            prop_assert!(free.iter().map(Some).eq(all));
        }

        /// A bin with hundreds of blocks behaves like a sorted map, too.
        #[test]
        fn bin_with_many_blocks_behaves_like_a_sorted_map(steps in prop::collection::vec(0..300u64, 1..1500)) {
            let (mut free, mut model) = (FreeBlocks::default(), BTreeMap::new());
            for (number, address) in steps.into_iter().enumerate() {
                toggle(&mut free, &mut model, FitKey { size: 1 << 30, address: address * 512 }, number);
                let first = model.first_key_value().map(|(_, &index)| (bin_of(1 << 30), index));
                prop_assert_eq!(free.best_fit(1 << 30), first);
            }
            let all = model.iter().map(|entry| fit_of(Some(entry)));
            prop_assert!(free.iter().map(Some).eq(all));
        }
    }
}
