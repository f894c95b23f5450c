//! The figures that conditions can be about.

use vramscope_trace::{ByteSize, Count, Percent};

use crate::comparison::DeviceTotals;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Bytes.
    Bytes,
    /// A number of blocks, segments or events.
    Count,
    /// A share from 0 to 1.
    Share,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number of bytes.
    Bytes(u64),
    /// A number of blocks, segments or events.
    Count(u64),
    /// A share from 0 to 1.
    Share(f64),
}

/// A figure of a device of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Peak of allocated bytes.
    PeakAllocated,
    /// Peak of reserved bytes.
    PeakReserved,
    /// Allocated bytes at the compared moment.
    Allocated,
    /// Live bytes (allocated or pending free) at the compared moment.
    Active,
    /// Reserved bytes at the compared moment.
    Reserved,
    /// Requested bytes at the compared moment.
    Requested,
    /// Allocated bytes at the end.
    EndAllocated,
    /// Reserved bytes at the end.
    EndReserved,
    /// Number of out-of-memory events.
    Ooms,
    /// Number of events.
    Events,
    /// Number of allocations.
    Allocations,
    /// Bytes of all allocations, freed ones included.
    AllocatedTotal,
    /// Live blocks at the compared moment.
    Blocks,
    /// Segments at the compared moment.
    Segments,
    /// Fragmentation at the compared moment.
    Fragmentation,
    /// Fragmentation at the peak of allocated bytes.
    PeakFragmentation,
    /// Fragmentation at the end.
    EndFragmentation,
    /// Highest fragmentation.
    HighestFragmentation,
    /// Mean fragmentation over time.
    MeanFragmentation,
}

/// A metric's name in conditions and JSON, and how it is computed.
type Definition = (Metric, &'static str, fn(&DeviceTotals) -> Value);

/// All metrics, in the order of documentation and messages.
const DEFINITIONS: [Definition; 19] = [
    (Metric::PeakAllocated, "peak_allocated", |totals| Value::Bytes(totals.peak_allocated_bytes)),
    (Metric::PeakReserved, "peak_reserved", |totals| Value::Bytes(totals.peak_reserved_bytes)),
    (Metric::Allocated, "allocated", |totals| Value::Bytes(totals.at_moment.counters.allocated)),
    (Metric::Active, "active", |totals| Value::Bytes(totals.at_moment.counters.active)),
    (Metric::Reserved, "reserved", |totals| Value::Bytes(totals.at_moment.counters.reserved)),
    (Metric::Requested, "requested", |totals| Value::Bytes(totals.at_moment.counters.requested)),
    (Metric::EndAllocated, "end_allocated", |totals| Value::Bytes(totals.allocated_bytes)),
    (Metric::EndReserved, "end_reserved", |totals| Value::Bytes(totals.reserved_bytes)),
    (Metric::Ooms, "ooms", |totals| Value::Count(totals.ooms)),
    (Metric::Events, "events", |totals| Value::Count(totals.events)),
    (Metric::Allocations, "allocations", |totals| Value::Count(totals.churn.allocations)),
    (Metric::AllocatedTotal, "allocated_total", |totals| Value::Bytes(totals.churn.bytes)),
    (Metric::Blocks, "blocks", |totals| Value::Count(totals.at_moment.blocks)),
    (Metric::Segments, "segments", |totals| Value::Count(totals.at_moment.segments)),
    (Metric::Fragmentation, "fragmentation", |totals| Value::Share(totals.at_moment.free.fragmentation())),
    (Metric::PeakFragmentation, "peak_fragmentation", |totals| Value::Share(totals.peak_fragmentation)),
    (Metric::EndFragmentation, "end_fragmentation", |totals| Value::Share(totals.fragmentation)),
    (Metric::HighestFragmentation, "highest_fragmentation", |totals| {
        Value::Share(totals.fragmentation_over_time.highest)
    }),
    (Metric::MeanFragmentation, "mean_fragmentation", |totals| Value::Share(totals.fragmentation_over_time.mean)),
];

impl Metric {
    /// Returns all metrics, in the order of documentation and messages.
    pub fn all() -> impl Iterator<Item = Self> {
        DEFINITIONS.iter().map(|&(metric, ..)| metric)
    }

    /// Returns the metric called `name`, or `None` if no metric has that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|metric| metric.name() == name)
    }

    /// Returns the name in conditions and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.definition().1
    }

    /// Returns the unit of the metric.
    #[must_use]
    pub fn kind(self) -> MetricKind {
        match self.value(&DeviceTotals::default()) {
            Value::Bytes(_) => MetricKind::Bytes,
            Value::Count(_) => MetricKind::Count,
            Value::Share(_) => MetricKind::Share,
        }
    }

    /// Returns the metric's value for a device.
    #[must_use]
    pub fn value(self, totals: &DeviceTotals) -> Value {
        (self.definition().2)(totals)
    }

    /// Returns the metric's entry in [`DEFINITIONS`].
    fn definition(self) -> &'static Definition {
        DEFINITIONS.iter().find(|(metric, ..)| *metric == self).expect("every metric has a definition")
    }
}

impl Value {
    /// Returns the value as text for users: `4.22 GiB`, `44,854`, `65.6%`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Bytes(bytes) => ByteSize(bytes).to_string(),
            Self::Count(count) => Count(count).to_string(),
            Self::Share(share) => Percent(share).to_string(),
        }
    }
}
