//! What the bytes of a device are, with a number for each kind.

use super::block_colors::Fill;

/// Number of levels that tell how much of the requested memory does not fit into a free block.
pub(crate) const STUCK_LEVELS: u8 = 16;

/// What a span of a device's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The requested bytes of a live block.
    Live(Fill),
    /// The bytes at the end of a live block beyond the requested ones.
    Rounding(Fill),
    /// Free memory that shares a segment or page with live blocks. The level, from 0 to 15, tells
    /// how much of the requested memory is in requests that are too large for it: 0 is nothing.
    Stuck(u8),
    /// A whole free segment, or whole free pages of an expandable one.
    Releasable,
    /// Memory of this process outside the pool.
    Outside,
    /// Memory of other processes.
    Others,
    /// Free memory of the driver.
    DriverFree,
    /// Memory of which the recording does not say who holds it.
    Unknown,
}

impl MemoryKind {
    /// Free memory that no request fits, the sample for all stuck memory.
    pub const MOST_STUCK: Self = Self::Stuck(STUCK_LEVELS - 1);

    /// Returns the name for users; `in use` for live blocks.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live(_) => "in use",
            Self::Rounding(_) => "rounding",
            Self::Stuck(_) => "stuck",
            Self::Releasable => "whole free segments",
            Self::Outside => "outside the pool",
            Self::Others => "other processes",
            Self::DriverFree => "free on the device",
            Self::Unknown => "not recorded",
        }
    }
}

/// The number of a [`MemoryKind`], an index of lists with an entry for each kind. Kinds of blocks
/// have the largest numbers, because there may be thousands of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId(pub(super) u32);

/// The kinds without a fill or level, in the order of their numbers.
const PLAIN: [MemoryKind; 5] =
    [MemoryKind::Releasable, MemoryKind::Outside, MemoryKind::Others, MemoryKind::DriverFree, MemoryKind::Unknown];
/// Number of the first level of [`MemoryKind::Stuck`].
const FIRST_STUCK: u32 = PLAIN.len() as u32;
/// Number of the first fill.
const FIRST_FILL: u32 = FIRST_STUCK + STUCK_LEVELS as u32;

impl KindId {
    /// Returns the number of a kind.
    #[must_use]
    pub fn of(kind: MemoryKind) -> Self {
        Self(match kind {
            MemoryKind::Releasable => 0,
            MemoryKind::Outside => 1,
            MemoryKind::Others => 2,
            MemoryKind::DriverFree => 3,
            MemoryKind::Unknown => 4,
            MemoryKind::Stuck(level) => FIRST_STUCK + u32::from(level.min(STUCK_LEVELS - 1)),
            MemoryKind::Live(fill) => FIRST_FILL + 2 * fill.number(),
            MemoryKind::Rounding(fill) => FIRST_FILL + 2 * fill.number() + 1,
        })
    }

    /// Returns the kind with this number.
    #[must_use]
    pub fn kind(self) -> MemoryKind {
        match self.0 {
            plain @ ..FIRST_STUCK => PLAIN[plain as usize],
            stuck @ FIRST_STUCK..FIRST_FILL => MemoryKind::Stuck((stuck - FIRST_STUCK) as u8),
            fill => {
                let (number, is_rounding) = ((fill - FIRST_FILL) / 2, (fill - FIRST_FILL) % 2 == 1);
                let fill = Fill::from_number(number);
                if is_rounding { MemoryKind::Rounding(fill) } else { MemoryKind::Live(fill) }
            }
        }
    }

    /// Returns the number as an index.
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The bytes of each kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindBytes(Vec<u64>);

impl KindBytes {
    /// Adds bytes of a kind.
    pub(super) fn add(&mut self, kind: KindId, bytes: u64) {
        if self.0.len() <= kind.index() {
            self.0.resize(kind.index() + 1, 0);
        }
        self.0[kind.index()] += bytes;
    }

    /// Returns a number above the numbers of all kinds that have bytes.
    pub(super) fn kind_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of a kind.
    #[must_use]
    pub fn of(&self, kind: MemoryKind) -> u64 {
        self.0.get(KindId::of(kind).index()).copied().unwrap_or(0)
    }

    /// Iterates over the kinds that have bytes, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryKind, u64)> + '_ {
        (0u32..).zip(&self.0).filter(|&(_, &bytes)| bytes > 0).map(|(number, &bytes)| (KindId(number).kind(), bytes))
    }

    /// Returns the bytes of the live blocks with a fill, with their rounding.
    #[must_use]
    pub fn of_fill(&self, fill: Fill) -> u64 {
        self.of(MemoryKind::Live(fill)) + self.of(MemoryKind::Rounding(fill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_identify_kinds() {
        let fills =
            [Fill::Allocated, Fill::Pending, Fill::Category(7), Fill::Amount(255), Fill::Group(0), Fill::Group(9999)];
        let blocks = fills.into_iter().flat_map(|fill| [MemoryKind::Live(fill), MemoryKind::Rounding(fill)]);
        let stuck = (0..STUCK_LEVELS).map(MemoryKind::Stuck);
        let mut numbers = std::collections::HashSet::new();
        for kind in blocks.chain(stuck).chain(PLAIN) {
            let id = KindId::of(kind);
            assert_eq!(id.kind(), kind);
            assert!(numbers.insert(id.0), "{kind:?}");
        }
    }
}
