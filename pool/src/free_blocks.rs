//! The free blocks of one stream in one pool, in the order in which best fit looks at them: by size, then by address.
//!
//! PyTorch keeps them in a red-black tree. Here they are in bins of similar size, so that most look-ups end at a bin's first block: bins
//! of one size each up to 16 KiB, then 32 to a power of two. A bin is a short sorted list, and a tree where it grows long, so that the
//! cost of an operation grows with the logarithm of the number of free blocks and no faster.

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

#[derive(Clone, Debug)]
enum Bin {
    List(Vec<Fit>),
    Tree(BTreeMap<FitKey, BlockIndex>),
}

impl Default for Bin {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Bin {
    fn insert(&mut self, fit: Fit) {
        match self {
            Self::List(list) => {
                let place = list.partition_point(|other| other.key < fit.key);
                list.insert(place, fit);
                if list.len() > LIST_MAX {
                    *self = Self::Tree(list.drain(..).map(|fit| (fit.key, fit.index)).collect());
                }
            }
            Self::Tree(tree) => {
                tree.insert(fit.key, fit.index);
            }
        }
    }

    /// Removes the block with that key; says whether the bin is now empty.
    fn remove(&mut self, key: FitKey) -> bool {
        match self {
            Self::List(list) => {
                let place = list.partition_point(|other| other.key < key);
                debug_assert_eq!(
                    list.get(place).map(|fit| fit.key),
                    Some(key),
                    "a free block is in the set of its home"
                );
                list.remove(place);
                list.is_empty()
            }
            Self::Tree(tree) => {
                let before = tree.remove(&key);
                debug_assert!(before.is_some(), "a free block is in the set of its home");
                if tree.len() < TREE_MIN {
                    *self = Self::List(tree.iter().map(|(&key, &index)| Fit { key, index }).collect());
                }
                false
            }
        }
    }

    /// The first block at or behind `key`.
    #[inline]
    fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        match self {
            // What is looked for is most often the first.
            Self::List(list) => list.iter().find(|fit| fit.key >= key).copied(),
            Self::Tree(tree) => tree.range(key..).next().map(|(&key, &index)| Fit { key, index }),
        }
    }

    /// The last block before `key`.
    fn before(&self, key: FitKey) -> Option<Fit> {
        match self {
            Self::List(list) => list.iter().rev().find(|fit| fit.key < key).copied(),
            Self::Tree(tree) => tree.range(..key).next_back().map(|(&key, &index)| Fit { key, index }),
        }
    }

    fn iter(&self) -> impl Iterator<Item = Fit> + '_ {
        let (list, tree) = match self {
            Self::List(list) => (Some(list), None),
            Self::Tree(tree) => (None, Some(tree)),
        };
        let list = list.into_iter().flatten().copied();
        list.chain(tree.into_iter().flatten().map(|(&key, &index)| Fit { key, index }))
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
    pub(crate) fn insert(&mut self, size: u64, address: u64, index: BlockIndex) {
        let bin = bin_of(size);
        if bin >= self.bins.len() {
            self.bins.resize_with(bin + 1, Bin::default);
        }
        self.bins[bin].insert(Fit { key: FitKey { size, address }, index });
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.words |= 1 << (bin / 64);
    }

    pub(crate) fn remove(&mut self, size: u64, address: u64) {
        let bin = bin_of(size);
        if self.bins[bin].remove(FitKey { size, address }) {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
            if self.occupied[bin / 64] == 0 {
                self.words &= !(1 << (bin / 64));
            }
        }
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
    #[inline]
    pub(crate) fn at_or_after(&self, key: FitKey) -> Option<Fit> {
        let bin = self.occupied_from(bin_of(key.size))?;
        if let Some(fit) = self.bins[bin].at_or_after(key) {
            return Some(fit);
        }
        self.bins[self.occupied_from(bin + 1)?].at_or_after(key)
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::block::tests::index;

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

    proptest! {
        /// Whatever is put in and taken out, the answers are those of a sorted set.
        #[test]
        fn answers_as_a_sorted_set_does(steps in prop::collection::vec((0..400u64, 0..40u64, any::<bool>()), 1..600)) {
            let (mut free, mut set) = (FreeBlocks::default(), BTreeSet::new());
            for (size, address, looks) in steps {
                let key = FitKey { size: (size * size / 7 + 1) * 512, address: address * 512 };
                if looks {
                    prop_assert_eq!(free.at_or_after(key).map(|fit| fit.key), set.range(key..).next().copied());
                    prop_assert_eq!(free.before(key).map(|fit| fit.key), set.range(..key).next_back().copied());
                } else if set.remove(&key) {
                    free.remove(key.size, key.address);
                } else {
                    set.insert(key);
                    free.insert(key.size, key.address, index());
                }
            }
            prop_assert_eq!(free.last().map(|fit| fit.key), set.last().copied());
            prop_assert!(free.iter().map(|fit| fit.key).eq(set));
        }

        /// Also where one bin holds thousands.
        #[test]
        fn a_full_bin_answers_the_same(steps in prop::collection::vec(0..300u64, 1..1500)) {
            let (mut free, mut set) = (FreeBlocks::default(), BTreeSet::new());
            for address in steps {
                let key = FitKey { size: 1 << 30, address: address * 512 };
                if set.remove(&key) {
                    free.remove(key.size, key.address);
                } else {
                    set.insert(key);
                    free.insert(key.size, key.address, index());
                }
                prop_assert_eq!(free.at_or_after(FitKey { address: 0, ..key }).map(|fit| fit.key), set.first().copied());
            }
            prop_assert!(free.iter().map(|fit| fit.key).eq(set));
        }
    }
}
