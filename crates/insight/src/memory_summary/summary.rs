//! The rows of the memory summary.

use vramscope_pool::{Stat, StatBySize, Stats, memory_summary};
use vramscope_trace::DeviceId;

/// Whether the values of a [`SummaryRow`] are bytes or a number of blocks or segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryUnit {
    /// Bytes.
    Bytes,
    /// A number of blocks or segments.
    Count,
}

/// The values of one quantity of the memory summary, for one size class or for both together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummaryValues {
    /// The value at the moment.
    pub current: u64,
    /// The highest value up to the moment; `None` if the history is incomplete.
    pub peak: Option<u64>,
    /// The sum of all increases; `None` if the history is incomplete.
    pub allocated_total: Option<u64>,
    /// The sum of all decreases; `None` if the history is incomplete.
    pub freed_total: Option<u64>,
}

/// A row of the memory summary, with the values of both size classes together and of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRow {
    /// The quantity's name for users.
    pub name: &'static str,
    /// Its key in `torch.cuda.memory_stats()`, without the size class.
    pub key: &'static str,
    /// The unit of its values.
    pub unit: SummaryUnit,
    /// Both size classes together.
    pub all: SummaryValues,
    /// Small and large pool; `None` for quantities that are not counted by size class.
    pub by_class: Option<[SummaryValues; 2]>,
}

/// The table of `torch.cuda.memory_summary()` for one device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySummary {
    /// The device.
    pub device: DeviceId,
    /// The moment.
    pub event: u64,
    /// True if peaks, sums, failures and retries are known; false if the history began after the
    /// first allocation, or if events are missing or contradict each other.
    pub is_complete: bool,
    /// Number of retries; `None` if they cannot be told from garbage collection.
    retries: Option<u64>,
    stats: Stats,
}

impl MemorySummary {
    /// Creates the summary of a device at the moment `event`.
    pub(super) fn new(device: DeviceId, event: u64, is_complete: bool, retries: Option<u64>, stats: Stats) -> Self {
        Self { device, event, is_complete, retries, stats }
    }

    /// Returns the values of `stat`.
    fn values(&self, stat: &Stat) -> SummaryValues {
        let known = |value: u64| self.is_complete.then_some(value);
        SummaryValues {
            current: stat.current,
            peak: known(stat.peak),
            allocated_total: known(stat.allocated),
            freed_total: known(stat.freed),
        }
    }

    /// Returns the rows in PyTorch's order.
    #[must_use]
    pub fn rows(&self) -> Vec<SummaryRow> {
        use SummaryUnit::{Bytes, Count};
        let stats = &self.stats;
        let by_size: [(&'static str, &'static str, SummaryUnit, &StatBySize); 9] = [
            ("allocated memory", "allocated_bytes", Bytes, &stats.allocated_bytes),
            ("active memory", "active_bytes", Bytes, &stats.active_bytes),
            ("requested memory", "requested_bytes", Bytes, &stats.requested_bytes),
            ("reserved memory", "reserved_bytes", Bytes, &stats.reserved_bytes),
            ("non-releasable memory", "inactive_split_bytes", Bytes, &stats.inactive_split_bytes),
            ("allocations", "allocation", Count, &stats.allocation),
            ("active allocations", "active", Count, &stats.active),
            ("segments", "segment", Count, &stats.segment),
            ("non-releasable blocks", "inactive_split", Count, &stats.inactive_split),
        ];
        let oversize: [(&'static str, &'static str, &Stat); 2] = [
            ("oversize allocations", "oversize_allocations", &stats.oversize_allocations),
            ("oversize segments", "oversize_segments", &stats.oversize_segments),
        ];
        let rows = by_size.into_iter().map(|(name, key, unit, stat)| SummaryRow {
            name,
            key,
            unit,
            all: self.values(&stat.all),
            by_class: Some([self.values(&stat.small_pool), self.values(&stat.large_pool)]),
        });
        let oversize = oversize.into_iter().map(|(name, key, stat)| SummaryRow {
            name,
            key,
            unit: Count,
            all: self.values(stat),
            by_class: None,
        });
        rows.chain(oversize).collect()
    }

    /// Returns the number of failed requests; `None` if the history is incomplete.
    #[must_use]
    pub fn ooms(&self) -> Option<u64> {
        self.is_complete.then_some(self.stats.num_ooms)
    }

    /// Returns the number of retries, failed ones included. `None` if the history is incomplete, or
    /// the settings include garbage collection.
    ///
    /// It is inferred from the events, see [`Retries`](crate::failures::Retries).
    #[must_use]
    pub fn retries(&self) -> Option<u64> {
        self.retries.filter(|_| self.is_complete)
    }

    /// Returns the table as PyTorch prints it; `None` if the history is incomplete.
    ///
    /// With garbage collection, its number of retries counts only failed retries.
    #[must_use]
    pub fn pytorch_table(&self) -> Option<String> {
        self.is_complete.then(|| memory_summary(&self.stats, self.device, false))
    }
}
