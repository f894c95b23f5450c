//! Sizes of parameters, and of blocks that have them.

use std::collections::BTreeMap;

/// How often each size occurs, in bytes.
pub(crate) type SizeCounts = BTreeMap<u64, u64>;

/// Counts how often each size occurs.
pub(crate) fn count(sizes: impl IntoIterator<Item = u64>) -> SizeCounts {
    let mut counts = SizeCounts::new();
    for size in sizes {
        *counts.entry(size).or_default() += 1;
    }
    counts
}

/// The width of a type of numbers compared with the parameters' type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Same,
    Half,
    Double,
}

impl Width {
    /// All widths, the most likely first.
    pub(super) const ALL: [Self; 3] = [Self::Same, Self::Half, Self::Double];

    /// Returns the size of the parameter of which a block of `size` bytes is a copy in this width.
    pub(super) fn parameter_of(self, size: u64) -> u64 {
        match self {
            Self::Same => size,
            Self::Half => size.saturating_mul(2),
            Self::Double => size / 2,
        }
    }
}

/// The sizes of a model's parameters.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    counts: SizeCounts,
    number: u64,
    bytes: u64,
}

impl Parameters {
    /// Counts the sizes of parameters.
    pub(super) fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        let counts = count(sizes);
        let bytes = counts.iter().fold(0u64, |sum, (size, number)| sum.saturating_add(size.saturating_mul(*number)));
        Self { number: counts.values().sum(), bytes, counts }
    }

    /// Returns the bytes of all parameters.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of parameters of a size.
    pub(super) fn of_size(&self, size: u64) -> u64 {
        self.counts.get(&size).copied().unwrap_or(0)
    }

    /// Returns the number of different sizes.
    pub(super) fn sizes(&self) -> usize {
        self.counts.len()
    }

    /// Returns true if a parameter has a block's size in any width.
    pub(super) fn has_width_of(&self, size: u64) -> bool {
        Width::ALL.iter().any(|width| self.of_size(width.parameter_of(size)) > 0)
    }

    /// Returns the number and the bytes of the parameters that have a block of their size in a
    /// width.
    fn matched(&self, blocks: &SizeCounts, width: Width) -> (u64, u64) {
        let of = |(size, number): (&u64, &u64)| {
            let parameter = width.parameter_of(*size);
            let found = self.of_size(parameter).min(*number);
            (found, parameter.saturating_mul(found))
        };
        blocks.iter().map(of).fold((0u64, 0u64), |sum, one| (sum.0 + one.0, sum.1.saturating_add(one.1)))
    }

    /// Returns true if at least half of the parameters, by number and by bytes, have a block of
    /// their size in a width.
    fn is_copy_in(&self, blocks: &SizeCounts, width: Width) -> bool {
        let (number, bytes) = self.matched(blocks, width);
        self.number > 0 && number >= self.number.div_ceil(2) && bytes >= self.bytes.div_ceil(2)
    }

    /// Returns true if blocks are a copy of at least half of the parameters, in any width.
    pub(super) fn is_copy(&self, blocks: &SizeCounts) -> bool {
        Width::ALL.iter().any(|width| self.is_copy_in(blocks, *width))
    }

    /// Returns the width of the copies of parameters among blocks: half or double if most
    /// parameters have such a block and few one of their own size.
    pub(super) fn width_of_copies(&self, blocks: &SizeCounts) -> Width {
        let (_, same) = self.matched(blocks, Width::Same);
        let is_other = |width: &&Width| self.is_copy_in(blocks, **width) && same < self.bytes / 4;
        Width::ALL[1..].iter().find(is_other).copied().unwrap_or(Width::Same)
    }
}
