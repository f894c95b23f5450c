//! The metrics over time: a bounded number of moments, each exact.

use super::{Metrics, metrics_by_group};
use crate::device_state::DeviceState;
use crate::event::{Event, EventKind, Pool, StreamId};

/// Moments kept of a device at most. Where there are more, every second is dropped and the next are taken half as often.
pub(super) const MAX_SAMPLES: usize = 4096;
/// Pools and streams kept at most, over all moments.
pub(super) const MAX_GROUPS: usize = 4 * MAX_SAMPLES;
/// Events between two moments, at first.
const FIRST_INTERVAL: u64 = 16;
/// Blocks and segments that may be looked at before the first event, so that a short recording has many moments: 3 ms.
const FIRST_CREDIT: u64 = 1 << 18;
/// Events that pay for a look at one more block or segment. It takes 12 ns (`benches/analyses.rs`), so that an event pays 1.5.
const EVENTS_PER_LOOK: u64 = 8;

/// What was allocated in a stretch of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churn {
    /// How many blocks.
    pub allocations: u64,
    /// Their bytes, after rounding.
    pub bytes: u64,
}

impl Churn {
    /// Counts one more block.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.allocations += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// What was allocated from an earlier moment to this, both counted from the beginning.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let allocations = self.allocations.saturating_sub(earlier.allocations);
        Self { allocations, bytes: self.bytes.saturating_sub(earlier.bytes) }
    }

    /// Bytes allocated a second over so many nanoseconds; 0 over none.
    #[must_use]
    pub fn bytes_per_second(&self, duration_ns: u64) -> f64 {
        if duration_ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / duration_ns as f64 }
    }

    /// Blocks allocated a second over so many nanoseconds; 0 over none.
    #[must_use]
    pub fn allocations_per_second(&self, duration_ns: u64) -> f64 {
        if duration_ns == 0 { 0.0 } else { self.allocations as f64 * 1e9 / duration_ns as f64 }
    }
}

/// The metrics of one moment of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSample {
    /// The moment.
    pub event: u64,
    /// Its time.
    pub time_ns: u64,
    /// The metrics of the pools and streams that were asked for.
    pub metrics: Metrics,
    /// What the whole device allocated since the series began.
    pub churn: Churn,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) event: u64,
    pub(super) time_ns: u64,
    pub(super) churn: Churn,
    /// Where its groups end among all.
    pub(super) end: usize,
}

/// The metrics of a device over time, at up to 4,096 moments. They are taken so seldom that they cost an event little: with many live
/// blocks there are fewer. Each is exact at its moment; what lies between two is not in the series, and is found by a
/// [`Replay`](crate::Replay) and [`Metrics::at`].
#[derive(Clone, Debug)]
pub struct MetricsSeries {
    pub(super) moments: Vec<Moment>,
    pub(super) groups: Vec<((Pool, StreamId), Metrics)>,
    pub(super) churn: Churn,
    /// Events between two moments.
    pub(super) interval: u64,
    /// Events still to wait for the next moment.
    wait: u64,
    /// How many that were when the last moment was taken.
    waited: u64,
    /// Looks that are paid for.
    credit: u64,
}

impl Default for MetricsSeries {
    fn default() -> Self {
        Self::starting_with(FIRST_INTERVAL)
    }
}

impl MetricsSeries {
    /// Before the first event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Without moments, the next of which is so many events away.
    pub(super) fn starting_with(interval: u64) -> Self {
        Self {
            moments: Vec::new(),
            groups: Vec::new(),
            churn: Churn::default(),
            interval,
            wait: interval,
            waited: interval,
            credit: FIRST_CREDIT,
        }
    }

    /// Takes the device's next event, `state` being that after it, at the moment `moment`. Neither moments nor times go back.
    #[inline]
    pub fn event(&mut self, moment: u64, event: &Event, state: &DeviceState) {
        let mut allocated = Churn::default();
        if let EventKind::BlockAllocated { size, .. } = event.kind {
            allocated.add(size);
        }
        self.events(1, allocated, (moment, event.time_ns), state);
    }

    /// Takes the device's next `count` events at once, which allocated so much; `state` is that after them, at the moment and the time `at`.
    /// What comes between has no moment of its own, so that a recording read chunk by chunk need not show a state within one.
    #[inline]
    pub fn events(&mut self, count: u64, allocated: Churn, at: (u64, u64), state: &DeviceState) {
        self.churn.allocations = self.churn.allocations.saturating_add(allocated.allocations);
        self.churn.bytes = self.churn.bytes.saturating_add(allocated.bytes);
        self.wait = self.wait.saturating_sub(count);
        if self.wait == 0 {
            self.take(at.0, at.1, state);
        }
    }

    /// How many more events the device has before the next moment is taken. No state is looked at before.
    #[inline]
    pub(crate) fn wait(&self) -> u64 {
        self.wait
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self, moment: u64, time_ns: u64, state: &DeviceState) {
        // What a moment costs even if nothing is there is as much as a few blocks.
        let looks = (state.blocks().len() + state.segments().len()) as u64 + 16;
        self.credit = (self.credit + self.waited / EVENTS_PER_LOOK).saturating_sub(looks);
        let missing = looks.saturating_sub(self.credit);
        self.waited = self.interval.max(missing.saturating_mul(EVENTS_PER_LOOK));
        self.wait = self.waited;
        self.groups.extend(metrics_by_group(state));
        // A time that goes back counts as that of the moment before, as it does for a state.
        let time_ns = self.moments.last().map_or(time_ns, |last| last.time_ns.max(time_ns));
        self.moments.push(Moment { event: moment, time_ns, churn: self.churn, end: self.groups.len() });
        while self.moments.len() > 1 && (self.moments.len() >= MAX_SAMPLES || self.groups.len() > MAX_GROUPS) {
            self.drop_every_second();
        }
    }

    /// Drops every second moment, and not the last.
    pub(super) fn drop_every_second(&mut self) {
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

    /// How many moments there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// The metrics of those pools and streams that `select` takes, at all moments whose times are from `from_ns` to `to_ns`.
    pub fn between<'a>(
        &'a self,
        from_ns: u64,
        to_ns: u64,
        mut select: impl FnMut(Pool, StreamId) -> bool + 'a,
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

    /// The pools and streams that were there at some of the moments, in order.
    #[must_use]
    pub fn groups(&self) -> Vec<(Pool, StreamId)> {
        let mut groups: Vec<_> = self.groups.iter().map(|(group, _)| *group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Bytes of memory that it occupies.
    #[must_use]
    pub fn size_in_memory(&self) -> usize {
        self.moments.capacity() * size_of::<Moment>()
            + self.groups.capacity() * size_of::<((Pool, StreamId), Metrics)>()
    }
}
