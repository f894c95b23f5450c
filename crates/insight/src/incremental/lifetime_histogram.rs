//! The histogram of lifetimes and sizes, counted in parts.

use std::collections::BTreeMap;

use vramscope_trace::DeviceId;

use super::{DeviceHistory, EVENTS_PER_CALL};

/// The unit of lifetimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LifeUnit {
    /// Nanoseconds.
    #[default]
    Time,
    /// Events.
    Events,
}

impl LifeUnit {
    /// Returns the end of the class of the shortest lifetimes; each further class ends at ten times
    /// the end of the one before.
    const fn shortest(self) -> u64 {
        match self {
            Self::Time => 1_000,
            Self::Events => 1,
        }
    }
}

/// A class of sizes and a class of lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LifetimeCell {
    /// The sizes: from this power of two, as an exponent, to the next.
    pub size: u8,
    /// The lifetimes, by the number of their class, or [`LifetimeCell::NOT_FREED`].
    pub life: u8,
}

impl LifetimeCell {
    /// The class of the allocations that were not freed.
    pub const NOT_FREED: u8 = u8::MAX;

    /// Returns the cell of an allocation; `life` is `None` if it was not freed.
    fn of(size: u64, life: Option<u64>, unit: LifeUnit) -> Self {
        let class = |life: u64| (life / unit.shortest()).checked_ilog10().map_or(0, |log| log as u8 + 1);
        Self { size: size.checked_ilog2().unwrap_or(0) as u8, life: life.map_or(Self::NOT_FREED, class) }
    }

    /// Returns the smallest size in bytes of the class.
    pub fn min_size(self) -> u64 {
        1 << self.size.min(63)
    }

    /// Returns the bounds of the lifetimes: at least the first, less than the second.
    pub fn lives(self, unit: LifeUnit) -> (u64, u64) {
        let end = |class: u32| unit.shortest().saturating_mul(10u64.saturating_pow(class));
        (u32::from(self.life).checked_sub(1).map_or(0, end), end(self.life.into()))
    }

    /// Returns the number that stands for the cell in links and commands.
    pub fn number(self) -> u64 {
        u64::from(self.size) << 8 | u64::from(self.life)
    }
}

/// Number and bytes of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationSum {
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl AllocationSum {
    fn add(&mut self, bytes: u64) {
        self.allocations += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The allocations that some events made, by lifetime and size.
#[derive(Clone, Debug, Default)]
pub struct LifetimeHistogram {
    /// The allocations of each cell.
    pub cells: BTreeMap<LifetimeCell, AllocationSum>,
    /// All allocations in the cells.
    pub all: AllocationSum,
}

impl LifetimeHistogram {
    /// Adds the allocations made after the moment `from` and up to `to`; those freed after `until`
    /// are not freed.
    fn add(&mut self, source: &DeviceHistory<'_>, unit: LifeUnit, (from, to): (u64, u64), until: u64) {
        let position = |moment: u64| match unit {
            LifeUnit::Time => source.history.time_ns(moment),
            LifeUnit::Events => moment,
        };
        source.lifetimes.for_each_row(source.lifetimes.rows_started_in(from, to), |row| {
            if !row.start_observed {
                return;
            }
            let freed = row.allocated_until.filter(|freed| *freed <= until);
            let life = freed.map(|freed| position(freed).saturating_sub(position(row.first_moment)));
            self.cells.entry(LifetimeCell::of(row.size, life, unit)).or_default().add(row.size);
            self.all.add(row.size);
        });
    }
}

/// The inputs of a histogram: device, generation of its history, unit, and the moments after which
/// and up to which the allocations were made.
pub type LifetimeScanKey = (DeviceId, u64, LifeUnit, u64, u64);

/// A count of a histogram in parts, one in each frame. As the recording grows, another count
/// begins; the last complete histogram is shown meanwhile.
#[derive(Default)]
pub struct LifetimeScan {
    key: Option<LifetimeScanKey>,
    /// The moment at which the running count began: later frees are not known to it.
    until: u64,
    /// The moment up to which allocations are counted.
    counted: u64,
    next: LifetimeHistogram,
    shown: LifetimeHistogram,
    /// Number of complete counts.
    revision: u64,
}

impl LifetimeScan {
    /// Continues the count for one frame. Returns true if the histogram is complete for all events
    /// read so far.
    pub fn advance(&mut self, source: &DeviceHistory<'_>, key: LifetimeScanKey) -> bool {
        let (.., unit, from, to) = key;
        let known = source.history.until();
        if self.key != Some(key) {
            let revision = self.revision + 1;
            *self = Self { key: Some(key), until: known, counted: from, revision, ..Self::default() };
        }
        let end = to.min(self.until);
        if self.counted >= end && self.until == known && (self.counted > from || from >= end) {
            return true;
        }
        let next = end.min(self.counted.saturating_add(EVENTS_PER_CALL));
        self.next.add(source, unit, (self.counted, next), self.until);
        self.counted = next;
        if next < end {
            return false;
        }
        self.shown = std::mem::take(&mut self.next);
        self.revision += 1;
        let is_complete = self.until == known;
        if !is_complete {
            (self.until, self.counted) = (known, from);
        }
        is_complete
    }

    /// Returns the last complete histogram.
    pub fn histogram(&self) -> &LifetimeHistogram {
        &self.shown
    }

    /// Returns a number that changes with the histogram.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_contain_their_bounds() {
        for unit in [LifeUnit::Time, LifeUnit::Events] {
            for life in [0, 1, 9, 10, 999, 1000, 9_999, 10_000, 123_456_789, u64::MAX] {
                let cell = LifetimeCell::of(512, Some(life), unit);
                let (from, to) = cell.lives(unit);
                assert!(from <= life && (life < to || to == u64::MAX), "{life} {unit:?}: {from} to {to}");
                assert_eq!(cell.min_size(), 512);
            }
            assert_eq!(LifetimeCell::of(1023, None, unit), LifetimeCell { size: 9, life: LifetimeCell::NOT_FREED });
        }
        assert_eq!(LifetimeCell::of(0, Some(0), LifeUnit::Events), LifetimeCell { size: 0, life: 0 });
    }
}
