//! The free blocks of one stream in one pool, in the order in which best fit looks at them: by size, then by address.
//!
//! PyTorch keeps them in a red-black tree. Here they are in bins of similar size, so that most look-ups end at a bin's first block: bins
//! of one size each up to 16 KiB, then 32 to a power of two. What is in a bin behind the first is a short sorted list, and a tree where
//! it grows long, so that the cost of an operation grows with the logarithm of the number of free blocks and no faster.

use std::collections::BTreeMap;

use crate::block::BlockIndex;
use crate::size::MIN_BLOCK_BYTES;

/// The order of best fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FitKey {
    pub(crate) size: u64,
    pub(crate) address: u64,
}

/// A free block as best fit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) key: FitKey,
    pub(crate) index: BlockIndex,
}

/// Bins to a power of two, as a power of two.
const STEP_BITS: u32 = 5;
/// Sizes below 2^61 bytes have a bin; the pool refuses requests long before.
const BINS: usize = 48 << STEP_BITS;
/// A bin that is longer becomes a tree, and a tree that is shorter a list. Between the two it stays what it is. Moving half of 64 entries
/// of 24 bytes takes less time than walking a tree.
const LIST_MAX: usize = 64;
const TREE_MIN: usize = 16;

/// The bin of a size. Larger sizes are in the same bin or a later one.
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

/// Blocks of similar size. Most bins hold one at most, which is found without another look at memory.
///
/// The first block's fields are not a [`Fit`], and are read one by one: to copy one as a whole right after its fields were written takes
/// ten times as long, since the processor then has to wait until they are in the cache.
#[derive(Clone, Debug, Default)]
struct Bin {
    /// The first block; the other fields are meaningless where there is none.
    index: Option<BlockIndex>,
    size: u64,
    address: u64,
    /// What comes behind the first.
    more: More,
}

#[derive(Clone, Debug)]
enum More {
    /// The last in order first, so that the first is taken off the end.
    List(Vec<Fit>),
    Tree(BTreeMap<FitKey, BlockIndex>),
}

impl Default for More {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl More {
    #[inline(never)]
    fn insert(&mut self, key: FitKey, index: BlockIndex) {
        match self {
            Self::List(list) => {
                let place = list.partition_point(|other| other.key > key);
                list.insert(place, Fit { key, index });
                if list.len() > LIST_MAX {
                    *self = Self::Tree(list.iter().map(|fit| (fit.key, fit.index)).collect());
                }
            }
            Self::Tree(tree) => {
                tree.insert(key, index);
            }
        }
    }

    #[inline(never)]
    fn remove(&mut self, key: FitKey) {
        match self {
            Self::List(list) => {
                let place = list.partition_point(|other| other.key > key);
                debug_assert_eq!(list.get(place).map(|fit| fit.key), Some(key), "a free block is in its home");
                list.remove(place);
            }
            Self::Tree(tree) => {
                let before = tree.remove(&key);
                debug_assert!(before.is_some(), "a free block is in its home");
                self.fold();
            }
        }
    }

    fn pop_first(&mut self) -> Option<Fit> {
        match self {
            Self::List(list) => list.pop(),
            Self::Tree(tree) => {
                let first = tree.pop_first().map(|(key, index)| Fit { key, index });
                self.fold();
                first
            }
        }
    }

    /// Makes a tree that has become short a list.
    fn fold(&mut self) {
        if let Self::Tree(tree) = self
            && tree.len() < TREE_MIN
        {
            *self = Self::List(tree.iter().rev().map(|(&key, &index)| Fit { key, index }).collect());
        }
    }

    #[inline(never)]
    fn best_fit(&self, size: u64) -> Option<BlockIndex> {
        self.at_or_after(FitKey { size, address: 0 }).map(|fit| fit.index)
    }

    fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        match self {
            Self::List(list) => list[..list.partition_point(|other| other.key >= key)].last().copied(),
            Self::Tree(tree) => tree.range(key..).next().map(|(&key, &index)| Fit { key, index }),
        }
    }

    fn before(&self, key: FitKey) -> Option<Fit> {
        match self {
            Self::List(list) => list.get(list.partition_point(|other| other.key >= key)).copied(),
            Self::Tree(tree) => tree.range(..key).next_back().map(|(&key, &index)| Fit { key, index }),
        }
    }
}

impl Bin {
    fn first(&self) -> Option<Fit> {
        let &Self { size, address, .. } = self;
        self.index.map(|index| Fit { key: FitKey { size, address }, index })
    }

    #[inline]
    fn set_first(&mut self, size: u64, address: u64, index: BlockIndex) {
        (self.size, self.address, self.index) = (size, address, Some(index));
    }

    #[inline]
    fn insert(&mut self, size: u64, address: u64, index: BlockIndex) {
        match self.index {
            None => self.set_first(size, address, index),
            Some(_) if (self.size, self.address) < (size, address) => {
                self.more.insert(FitKey { size, address }, index);
            }
            Some(first) => {
                self.more.insert(FitKey { size: self.size, address: self.address }, first);
                self.set_first(size, address, index);
            }
        }
    }

    /// Removes a block; says whether the bin is now empty.
    #[inline]
    fn remove(&mut self, size: u64, address: u64, index: BlockIndex) -> bool {
        if self.index != Some(index) {
            self.more.remove(FitKey { size, address });
            return false;
        }
        if matches!(&self.more, More::List(list) if list.is_empty()) {
            self.index = None;
            return true;
        }
        self.refill();
        false
    }

    /// Makes the next block the first. There is one.
    #[inline(never)]
    fn refill(&mut self) {
        if let Some(Fit { key, index }) = self.more.pop_first() {
            self.set_first(key.size, key.address, index);
        }
    }

    /// The smallest block of at least `size`, of these the lowest.
    #[inline]
    fn best_fit(&self, size: u64) -> Option<BlockIndex> {
        if self.size >= size { self.index } else { self.more.best_fit(size) }
    }

    /// The first block at or behind `key`.
    fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        match self.first() {
            Some(first) if first.key < key => self.more.at_or_after(key),
            first => first,
        }
    }

    /// The last block before `key`.
    fn before(&self, key: FitKey) -> Option<Fit> {
        self.more.before(key).or(self.first().filter(|first| first.key < key))
    }

    fn iter(&self) -> impl Iterator<Item = Fit> + '_ {
        let (list, tree) = match &self.more {
            More::List(list) => (Some(list), None),
            More::Tree(tree) => (None, Some(tree)),
        };
        let list = list.into_iter().flat_map(|list| list.iter().rev().copied());
        let tree = tree.into_iter().flatten().map(|(&key, &index)| Fit { key, index });
        self.first().into_iter().chain(list).chain(tree)
    }
}

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    /// As many as were ever needed.
    bins: Vec<Bin>,
    /// A bit for each bin that holds a block.
    occupied: [u64; BINS / 64],
    /// A bit for each word of `occupied` that is not 0.
    words: u64,
}

impl FreeBlocks {
    #[inline]
    pub(crate) fn insert(&mut self, size: u64, address: u64, index: BlockIndex) {
        let bin = bin_of(size);
        if bin >= self.bins.len() {
            self.grow(bin);
        }
        self.bins[bin].insert(size, address, index);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.words |= 1 << (bin / 64);
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bin: usize) {
        self.bins.resize_with(bin + 1, Bin::default);
    }

    #[inline]
    pub(crate) fn remove(&mut self, size: u64, address: u64, index: BlockIndex) {
        self.take(bin_of(size), size, address, index);
    }

    /// Removes a block from its bin.
    #[inline]
    pub(crate) fn take(&mut self, bin: usize, size: u64, address: u64, index: BlockIndex) {
        if self.bins[bin].remove(size, address, index) {
            let bits = &mut self.occupied[bin / 64];
            *bits &= !(1 << (bin % 64));
            if *bits == 0 {
                self.words &= !(1 << (bin / 64));
            }
        }
    }

    /// The smallest block of at least `size`, of these the lowest, and its bin.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<(usize, BlockIndex)> {
        let bin = self.occupied_from(bin_of(size))?;
        if let Some(index) = self.bins[bin].best_fit(size) {
            return Some((bin, index));
        }
        let bin = self.occupied_from(bin + 1)?;
        self.bins[bin].index.map(|index| (bin, index))
    }

    /// The first bin from `bin` on that holds a block.
    #[inline]
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        if bin >= BINS {
            return None;
        }
        let word = bin / 64;
        let bits = self.occupied[word] & (!0 << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let words = self.words & (!0 << word) & !(1 << word);
        (words != 0).then(|| {
            let word = words.trailing_zeros() as usize;
            word * 64 + self.occupied[word].trailing_zeros() as usize
        })
    }

    /// The last bin up to `bin` that holds a block.
    fn occupied_until(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.occupied[word] & (!0 >> (63 - bin % 64));
        if bits != 0 {
            return Some(word * 64 + 63 - bits.leading_zeros() as usize);
        }
        let words = self.words & ((1 << word) - 1);
        (words != 0).then(|| {
            let word = 63 - words.leading_zeros() as usize;
            word * 64 + 63 - self.occupied[word].leading_zeros() as usize
        })
    }

    /// The first block at or behind `key`.
    pub(crate) fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        let bin = self.occupied_from(bin_of(key.size))?;
        self.bins[bin].at_or_after(key).or_else(|| self.bins[self.occupied_from(bin + 1)?].first())
    }

    /// The last block before `key`.
    pub(crate) fn before(&self, key: FitKey) -> Option<Fit> {
        let bin = self.occupied_until(bin_of(key.size))?;
        if let Some(fit) = self.bins[bin].before(key) {
            return Some(fit);
        }
        self.bins[self.occupied_until(bin.checked_sub(1)?)?].before(key)
    }

    /// The last block.
    pub(crate) fn last(&self) -> Option<Fit> {
        self.before(FitKey { size: u64::MAX, address: u64::MAX })
    }

    /// All in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Fit> + '_ {
        self.bins.iter().flat_map(Bin::iter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::tests::index_at;

    #[test]
    fn larger_sizes_are_in_the_same_bin_or_a_later_one() {
        let mut last = 0;
        for units in (1..5000u64).chain((13..52).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let bin = bin_of(units * 512);
            assert!(bin >= last && bin < BINS, "{units}");
            last = bin;
        }
        assert_ne!(bin_of(512), bin_of(1024));
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    /// Puts a key in, or takes it out where it is there.
    fn toggle(free: &mut FreeBlocks, model: &mut BTreeMap<FitKey, BlockIndex>, key: FitKey, number: usize) {
        if let Some(index) = model.remove(&key) {
            free.remove(key.size, key.address, index);
        } else {
            model.insert(key, index_at(number));
            free.insert(key.size, key.address, index_at(number));
        }
    }

    fn of(entry: Option<(&FitKey, &BlockIndex)>) -> Option<Fit> {
        entry.map(|(&key, &index)| Fit { key, index })
    }

    proptest! {
        /// Whatever is put in and taken out, the answers are those of a sorted map.
        #[test]
        fn answers_as_a_sorted_map_does(steps in prop::collection::vec((0..400u64, 0..40u64, any::<bool>()), 1..600)) {
            let (mut free, mut model) = (FreeBlocks::default(), BTreeMap::new());
            for (number, (size, address, looks)) in steps.into_iter().enumerate() {
                let key = FitKey { size: (size * size / 7 + 1) * 512, address: address * 512 };
                if looks {
                    prop_assert_eq!(free.at_or_after(key), of(model.range(key..).next()));
                    prop_assert_eq!(free.before(key), of(model.range(..key).next_back()));
                    let fit = model.range(FitKey { address: 0, ..key }..).next();
                    let found = fit.map(|(fit, &index)| (bin_of(fit.size), index));
                    prop_assert_eq!(free.best_fit(key.size), found);
                } else {
                    toggle(&mut free, &mut model, key, number);
                }
            }
            prop_assert_eq!(free.last(), of(model.last_key_value()));
            let all = model.iter().map(|entry| of(Some(entry)));
            prop_assert!(free.iter().map(Some).eq(all));
        }

        /// Also where one bin holds hundreds.
        #[test]
        fn a_full_bin_answers_the_same(steps in prop::collection::vec(0..300u64, 1..1500)) {
            let (mut free, mut model) = (FreeBlocks::default(), BTreeMap::new());
            for (number, address) in steps.into_iter().enumerate() {
                toggle(&mut free, &mut model, FitKey { size: 1 << 30, address: address * 512 }, number);
                let first = model.first_key_value().map(|(_, &index)| (bin_of(1 << 30), index));
                prop_assert_eq!(free.best_fit(1 << 30), first);
            }
            let all = model.iter().map(|entry| of(Some(entry)));
            prop_assert!(free.iter().map(Some).eq(all));
        }
    }
}
