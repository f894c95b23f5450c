//! The figures that conditions can be about.

use vramscope_trace::{ByteSize, Count, Percent};

use crate::comparison::DeviceTotals;

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Bytes.
    Bytes,
    /// A number of things.
    Count,
    /// A share from 0 to 1.
    Share,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number of bytes.
    Bytes(u64),
    /// A number of things.
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

impl Metric {
    /// All metrics, in the order of documentation and messages.
    pub const ALL: [Self; 19] = [
        Self::PeakAllocated,
        Self::PeakReserved,
        Self::Allocated,
        Self::Active,
        Self::Reserved,
        Self::Requested,
        Self::EndAllocated,
        Self::EndReserved,
        Self::Ooms,
        Self::Events,
        Self::Allocations,
        Self::AllocatedTotal,
        Self::Blocks,
        Self::Segments,
        Self::Fragmentation,
        Self::PeakFragmentation,
        Self::EndFragmentation,
        Self::HighestFragmentation,
        Self::MeanFragmentation,
    ];

    /// Returns the metric called `name`, or `None` if no metric has that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Returns the name in conditions and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PeakAllocated => "peak_allocated",
            Self::PeakReserved => "peak_reserved",
            Self::Allocated => "allocated",
            Self::Active => "active",
            Self::Reserved => "reserved",
            Self::Requested => "requested",
            Self::EndAllocated => "end_allocated",
            Self::EndReserved => "end_reserved",
            Self::Ooms => "ooms",
            Self::Events => "events",
            Self::Allocations => "allocations",
            Self::AllocatedTotal => "allocated_total",
            Self::Blocks => "blocks",
            Self::Segments => "segments",
            Self::Fragmentation => "fragmentation",
            Self::PeakFragmentation => "peak_fragmentation",
            Self::EndFragmentation => "end_fragmentation",
            Self::HighestFragmentation => "highest_fragmentation",
            Self::MeanFragmentation => "mean_fragmentation",
        }
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
        let at_moment = &totals.at_moment;
        match self {
            Self::PeakAllocated => Value::Bytes(totals.peak_allocated_bytes),
            Self::PeakReserved => Value::Bytes(totals.peak_reserved_bytes),
            Self::Allocated => Value::Bytes(at_moment.counters.allocated),
            Self::Active => Value::Bytes(at_moment.counters.active),
            Self::Reserved => Value::Bytes(at_moment.counters.reserved),
            Self::Requested => Value::Bytes(at_moment.counters.requested),
            Self::EndAllocated => Value::Bytes(totals.allocated_bytes),
            Self::EndReserved => Value::Bytes(totals.reserved_bytes),
            Self::Ooms => Value::Count(totals.ooms),
            Self::Events => Value::Count(totals.events),
            Self::Allocations => Value::Count(totals.churn.allocations),
            Self::AllocatedTotal => Value::Bytes(totals.churn.bytes),
            Self::Blocks => Value::Count(at_moment.blocks),
            Self::Segments => Value::Count(at_moment.segments),
            Self::Fragmentation => Value::Share(at_moment.free.fragmentation()),
            Self::PeakFragmentation => Value::Share(totals.peak_fragmentation),
            Self::EndFragmentation => Value::Share(totals.fragmentation),
            Self::HighestFragmentation => Value::Share(totals.fragmentation_over_time.highest),
            Self::MeanFragmentation => Value::Share(totals.fragmentation_over_time.mean),
        }
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
