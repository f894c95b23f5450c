//! Metrics over time: exact values at a bounded number of moments.

use super::groups::metrics_by_group;
use super::metric_values::Metrics;
use crate::device_state::DeviceState;
use crate::event::{Event, EventKind, PoolKey, StreamId};
use crate::sort::sort_by_key;

/// Maximum number of moments in a [`MetricsSeries`]. Once it has this many, every second moment is
/// dropped, and later moments are sampled half as often.
pub(super) const MAX_SAMPLES: usize = 4096;
/// Maximum number of [`Metrics`] that a [`MetricsSeries`] stores: one for each pool and stream at
/// each moment. Above this number every second moment is dropped.
pub(super) const MAX_GROUPS: usize = 4 * MAX_SAMPLES;
/// Minimum number of events between two moments of a new [`MetricsSeries`].
const FIRST_INTERVAL: u64 = 16;
/// Number of blocks and segments that a new [`MetricsSeries`] may scan at once, so that a short
/// recording has many moments. Scanning them takes 3 ms.
const INITIAL_CREDIT: u64 = 1 << 18;
/// Number of events after which a [`MetricsSeries`] may scan one more block or segment. A scan
/// takes 12 ns per block or segment (`benches/analyses.rs`), so an event pays 1.5 ns.
const EVENTS_PER_SCANNED: u64 = 8;

/// Average number of events between two moments of the metrics that an index stores. To get the
/// metrics at a moment in between, a reader replays about this many events at most.
const EVENTS_PER_STORED_MOMENT: u64 = 4096;
/// Minimum number of moments of the metrics that an index stores; a series with fewer moments is
/// stored completely.
pub(super) const MIN_STORED_MOMENTS: u64 = 16;

/// The number and bytes of the allocations in a part of a recording, whether freed or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes allocated, after rounding.
    pub bytes: u64,
}

impl Churn {
    /// Counts one allocation of `bytes` bytes.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.allocations += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds the number and bytes of another part of a recording.
    #[inline]
    pub fn add_all(&mut self, other: Self) {
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Returns the number and bytes of the allocations added since `earlier`, a previous value of
    /// these counts.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let allocations = self.allocations.saturating_sub(earlier.allocations);
        Self { allocations, bytes: self.bytes.saturating_sub(earlier.bytes) }
    }

    /// Returns the bytes allocated per second over `duration_ns` nanoseconds; 0 for a duration of
    /// 0.
    #[must_use]
    pub fn bytes_per_second(&self, duration_ns: u64) -> f64 {
        if duration_ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / duration_ns as f64 }
    }
}

/// The metrics of the selected pools and streams at one moment of a [`MetricsSeries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSample {
    /// The moment (the number of events before it).
    pub event: u64,
    /// Time of the moment, in nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The metrics of the selected pools and streams.
    pub metrics: Metrics,
    /// Allocations of the whole device since the series began.
    pub churn: Churn,
}

/// A moment of a [`MetricsSeries`]; its metrics are a range of `MetricsSeries::groups`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) event: u64,
    pub(super) time_ns: u64,
    pub(super) churn: Churn,
    /// End of its range in `MetricsSeries::groups`.
    pub(super) end: usize,
}

/// The metrics of one device over time, exact at up to 4,096 moments.
///
/// Computing metrics scans all blocks, so moments are rarer when many blocks are live; the average
/// cost per event is bounded. Between two moments use a [`Replay`](crate::Replay) and
/// [`Metrics::at`]. Obtained from [`Recording::metrics`](crate::Recording::metrics).
#[derive(Clone, Debug)]
pub struct MetricsSeries {
    pub(super) moments: Vec<Moment>,
    /// The metrics of each pool and stream at each moment, moment by moment.
    pub(super) groups: Vec<((PoolKey, StreamId), Metrics)>,
    pub(super) churn: Churn,
    /// Least number of events between two moments.
    pub(super) interval: u64,
    /// Events until the next moment.
    events_until_next: u64,
    /// Value of `events_until_next` directly after the last moment.
    last_wait: u64,
    /// Number of blocks and segments that may be scanned now.
    scan_credit: u64,
}

impl Default for MetricsSeries {
    fn default() -> Self {
        Self::with_interval(FIRST_INTERVAL)
    }
}

impl MetricsSeries {
    /// Creates an empty series.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty series whose moments are at least `interval` events apart; the interval
    /// doubles whenever the series has too many moments.
    pub(super) fn with_interval(interval: u64) -> Self {
        Self {
            moments: Vec::new(),
            groups: Vec::new(),
            churn: Churn::default(),
            interval,
            events_until_next: interval,
            last_wait: interval,
            scan_credit: INITIAL_CREDIT,
        }
    }

    /// Adds the device's next event; `state` is the device's state after it, at the moment
    /// `moment`.
    ///
    /// Neither moments nor times may decrease.
    #[inline]
    pub fn event(&mut self, moment: u64, event: &Event, state: &DeviceState) {
        let mut allocated = Churn::default();
        if let EventKind::BlockAllocated { size, .. } = event.kind {
            allocated.add(size);
        }
        self.events(1, allocated, (moment, event.time_ns), state);
    }

    /// Adds the device's next `count` events at once; `allocated` counts their allocations.
    ///
    /// `state` is the device's state after them; `at` is that moment and its time in nanoseconds.
    /// No moment between these events is sampled, so that a reader of chunks need not compute
    /// states within one.
    #[inline]
    pub fn events(&mut self, count: u64, allocated: Churn, at: (u64, u64), state: &DeviceState) {
        self.churn.add_all(allocated);
        self.events_until_next = self.events_until_next.saturating_sub(count);
        if self.events_until_next == 0 {
            self.sample(at.0, at.1, state);
        }
    }

    /// Returns after how many events of the device the next moment is sampled; no state is needed
    /// before.
    #[inline]
    pub(crate) fn events_until_next(&self) -> u64 {
        self.events_until_next
    }

    /// Adds `moment` to the series, with the metrics of `state` by pool and stream. Drops every
    /// second moment if the series has too many.
    #[cold]
    #[inline(never)]
    fn sample(&mut self, moment: u64, time_ns: u64, state: &DeviceState) {
        // A moment has a fixed cost, which equals the cost of 16 blocks.
        let scanned = (state.blocks().len() + state.segments().len()) as u64 + 16;
        self.scan_credit = (self.scan_credit + self.last_wait / EVENTS_PER_SCANNED).saturating_sub(scanned);
        let missing = scanned.saturating_sub(self.scan_credit);
        self.last_wait = self.interval.max(missing.saturating_mul(EVENTS_PER_SCANNED));
        self.events_until_next = self.last_wait;
        self.groups.extend(metrics_by_group(state));
        // A time before that of the previous moment is replaced by it, as in a memory state.
        let time_ns = self.moments.last().map_or(time_ns, |last| last.time_ns.max(time_ns));
        self.moments.push(Moment { event: moment, time_ns, churn: self.churn, end: self.groups.len() });
        while self.moments.len() > 1 && (self.moments.len() >= MAX_SAMPLES || self.groups.len() > MAX_GROUPS) {
            self.drop_every_second();
        }
    }

    /// Returns the part of the series that an index stores: one moment per 4,096 events on average.
    /// Thinning a thinned series changes nothing.
    #[must_use]
    pub(crate) fn thinned(&self) -> Self {
        let mut series = self.clone();
        let (first, last) = (series.moments.first(), series.moments.last());
        let span = first.zip(last).map_or(0, |(first, last)| last.event - first.event);
        while series.moments.len() as u64 > MIN_STORED_MOMENTS.max(span / EVENTS_PER_STORED_MOMENT) {
            series.drop_every_second();
        }
        series
    }

    /// Drops every second moment but keeps the last; later moments are sampled half as often.
    fn drop_every_second(&mut self) {
        self.interval = self.interval.saturating_mul(2);
        let groups = std::mem::take(&mut self.groups);
        let mut start = 0;
        let mut kept = Vec::with_capacity(self.moments.len());
        let last = self.moments.len().saturating_sub(1);
        for (index, moment) in self.moments.drain(..).enumerate() {
            let of_moment = &groups[start..moment.end];
            start = moment.end;
            if (last - index).is_multiple_of(2) {
                self.groups.extend_from_slice(of_moment);
                kept.push(Moment { end: self.groups.len(), ..moment });
            }
        }
        self.moments = kept;
    }

    /// Returns the number of moments in the series.
    #[must_use]
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Returns true if the series has no moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Returns the samples whose times (in nanoseconds) are from `from_ns` to `to_ns`, both
    /// included. They cover the pools and streams for which `select` returns true.
    pub fn between<'a>(
        &'a self,
        from_ns: u64,
        to_ns: u64,
        mut select: impl FnMut(PoolKey, StreamId) -> bool + 'a,
    ) -> impl Iterator<Item = MetricsSample> + 'a {
        let first = self.moments.partition_point(|moment| moment.time_ns < from_ns);
        let last = self.moments.partition_point(|moment| moment.time_ns <= to_ns).max(first);
        (first..last).map(move |index| {
            let Moment { event, time_ns, churn, end } = self.moments[index];
            let start = index.checked_sub(1).map_or(0, |before| self.moments[before].end);
            let mut metrics = Metrics::default();
            for ((pool, stream), of_group) in &self.groups[start..end] {
                if select(*pool, *stream) {
                    metrics.merge(of_group);
                }
            }
            MetricsSample { event, time_ns, metrics, churn }
        })
    }

    /// Returns the pools and streams that have metrics at some moment of the series, sorted.
    #[must_use]
    pub fn groups(&self) -> Vec<(PoolKey, StreamId)> {
        let mut groups: Vec<_> = self.groups.iter().map(|(group, _)| *group).collect();
        sort_by_key(&mut groups, |group| *group);
        groups.dedup();
        groups
    }

    /// Returns the memory that the series occupies, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.moments.capacity() * size_of::<Moment>()
            + self.groups.capacity() * size_of::<((PoolKey, StreamId), Metrics)>()
    }
}
