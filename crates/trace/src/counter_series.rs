//! Byte counters over time, at any zoom for a cost that depends only on the number of columns.
//!
//! Every 16 events of a device form a bucket with the minimum and maximum of each counter; every 8
//! buckets form a larger bucket, and so on. A time slice combines the largest buckets within it.
//! From 4,194,304 events on, the smallest buckets have 32 events, then 64, and so on, which bounds
//! the memory. The driver's memory samples form separate buckets; up to 262,144 samples each has
//! its own.

use crate::counters::{Counters, MemorySample};
use crate::even_part::even_part;
use crate::time_pyramid::{TimePyramid, TimeSlice};

/// Number of a device's events in the smallest bucket of a new [`CounterSeries`]; it doubles
/// whenever there are too many buckets. At a closer zoom, timelines replay the events.
const BUCKET_EVENTS: u64 = 16;

/// The last, lowest and highest value of each byte counter of a device in one time slice, for
/// example one pixel column of a timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterColumn {
    /// The moment at the slice's end (the number of events before it).
    pub event: u64,
    /// The counters at the slice's end.
    pub last: Counters,
    /// The minimum of each counter in the slice.
    pub min: Counters,
    /// The maximum of each counter in the slice.
    pub max: Counters,
}

/// The driver's memory samples of a device over one time slice: the last, and the minimum and
/// maximum of each value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleColumn {
    /// The last sample at the slice's end.
    pub last: MemorySample,
    /// The minimum of each value in the slice.
    pub min: MemorySample,
    /// The maximum of each value in the slice.
    pub max: MemorySample,
}

/// The highest value of a byte counter in a recording, and its first moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The first moment with this value (the number of events before it).
    pub event: u64,
    /// The value in bytes.
    pub bytes: u64,
}

impl Peak {
    /// Moves the peak to the moment `event` if `bytes` is larger. An equal value keeps the earlier
    /// moment.
    #[inline]
    fn raise(&mut self, event: u64, bytes: u64) {
        if bytes > self.bytes {
            *self = Self { event, bytes };
        }
    }
}

/// Peaks of the device memory in use over a recording, in bytes: by this process, and by all
/// processes.
///
/// The memory in use is the reserved bytes of the moment, plus the bytes that the driver's last
/// memory sample reports outside the pool (and in other processes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedMemoryPeaks {
    /// Used by this process: segments, and memory outside the pool.
    pub by_process: u64,
    /// Used by this process and all others.
    pub by_all_processes: u64,
}

/// Combines two lists of values: each value of the result is `pick` (minimum or maximum) of the two
/// values at its index.
#[inline]
fn combine<const N: usize>(a: [u64; N], b: [u64; N], pick: impl Fn(u64, u64) -> u64) -> [u64; N] {
    std::array::from_fn(|index| pick(a[index], b[index]))
}

impl CounterColumn {
    /// Creates a time slice in which the counters do not change, ending at the moment `event`.
    #[inline]
    pub(crate) fn from_counters(event: u64, counters: Counters) -> Self {
        Self { event, last: counters, min: counters, max: counters }
    }
}

impl TimeSlice for CounterColumn {
    #[inline]
    fn extend(&mut self, next: &Self) {
        self.event = next.event;
        self.last = next.last;
        self.min = Counters::from_array(combine(self.min.to_array(), next.min.to_array(), u64::min));
        self.max = Counters::from_array(combine(self.max.to_array(), next.max.to_array(), u64::max));
    }
}

impl SampleColumn {
    /// Creates a time slice without a new sample: last value, minimum and maximum are `sample`.
    fn from_sample(sample: MemorySample) -> Self {
        Self { last: sample, min: sample, max: sample }
    }
}

impl TimeSlice for SampleColumn {
    fn extend(&mut self, next: &Self) {
        self.last = next.last;
        self.min = MemorySample::from_array(combine(self.min.to_array(), next.min.to_array(), u64::min));
        self.max = MemorySample::from_array(combine(self.max.to_array(), next.max.to_array(), u64::max));
    }
}

/// The byte counters of one device over a whole recording.
///
/// [`columns`](Self::columns) returns them for any time range and width. Obtained from
/// [`Recording::series`](crate::Recording::series).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSeries {
    /// The counters before the first event.
    pub(crate) start: CounterColumn,
    /// The counters over time, in buckets of a fixed number of events.
    pub(crate) buckets: TimePyramid<CounterColumn>,
    /// A bucket for each sample that differs from the one before it.
    pub(crate) samples: TimePyramid<SampleColumn>,
    /// The last sample.
    sample: Option<MemorySample>,
    /// The reserved bytes after the last event.
    reserved: u64,
    peak_allocated: Peak,
    peak_active: Peak,
    peak_reserved: Peak,
    pub(crate) used_memory_peaks: UsedMemoryPeaks,
}

impl Default for CounterSeries {
    fn default() -> Self {
        Self::new(0, Counters::default())
    }
}

impl CounterSeries {
    /// Creates a series that begins with `counters` at the moment `event`.
    pub(crate) fn new(event: u64, counters: Counters) -> Self {
        let peak = |bytes| Peak { event: if bytes > 0 { event } else { 0 }, bytes };
        Self {
            start: CounterColumn::from_counters(event, counters),
            buckets: TimePyramid::new(BUCKET_EVENTS),
            samples: TimePyramid::new(1),
            sample: None,
            reserved: counters.reserved,
            peak_allocated: peak(counters.allocated),
            peak_active: peak(counters.active),
            peak_reserved: peak(counters.reserved),
            used_memory_peaks: UsedMemoryPeaks::default(),
        }
    }

    /// Creates a series from the parts that an index stored. `peak_events` are the moments of the
    /// peaks of allocated, active and reserved bytes; the bytes of the peaks follow from the
    /// buckets.
    pub(crate) fn from_parts(
        start: CounterColumn,
        buckets: TimePyramid<CounterColumn>,
        samples: TimePyramid<SampleColumn>,
        peak_events: [u64; 3],
        used_memory_peaks: UsedMemoryPeaks,
    ) -> Self {
        let mut whole = start;
        buckets.for_each_bucket(0, buckets.len(), |next| whole.extend(next));
        let [allocated, active, reserved] = peak_events;
        Self {
            start,
            sample: samples.len().checked_sub(1).and_then(|last| samples.get(last)).map(|last| last.slice.last),
            reserved: whole.last.reserved,
            peak_allocated: Peak { event: allocated, bytes: whole.max.allocated },
            peak_active: Peak { event: active, bytes: whole.max.active },
            peak_reserved: Peak { event: reserved, bytes: whole.max.reserved },
            used_memory_peaks,
            buckets,
            samples,
        }
    }

    /// Raises the peaks of allocated, active and reserved bytes to `counters`, which hold at the
    /// moment `event`, where these are larger.
    #[inline]
    fn raise_peaks(&mut self, event: u64, counters: &Counters) {
        self.peak_allocated.raise(event, counters.allocated);
        self.peak_active.raise(event, counters.active);
        // Rare: only when a segment is allocated or freed.
        if counters.reserved != self.reserved {
            self.reserved = counters.reserved;
            self.peak_reserved.raise(event, counters.reserved);
            self.raise_used_memory_peaks();
        }
    }

    /// Raises the peaks of used device memory if more is in use now: the reserved bytes plus the
    /// bytes that the last memory sample reports outside the pool. Does nothing before the first
    /// sample.
    fn raise_used_memory_peaks(&mut self) {
        if let Some(sample) = self.sample {
            let by_process = self.reserved.saturating_add(sample.used_by_context);
            let by_all_processes = by_process.saturating_add(sample.used_by_others);
            self.used_memory_peaks.by_process = self.used_memory_peaks.by_process.max(by_process);
            self.used_memory_peaks.by_all_processes = self.used_memory_peaks.by_all_processes.max(by_all_processes);
        }
    }

    /// Adds the counters after one more event of the device. `event` is the moment after that
    /// event, `time_ns` its time in nanoseconds; times must not decrease.
    #[inline]
    pub(crate) fn push(&mut self, event: u64, time_ns: u64, counters: Counters) {
        self.raise_peaks(event, &counters);
        self.buckets.push(time_ns, CounterColumn::from_counters(event, counters));
    }

    /// Adds a memory sample taken at the moment `event`, with the counters of that moment; a sample
    /// equal to the last one is ignored. Times (nanoseconds) must not decrease.
    pub(crate) fn push_sample(&mut self, event: u64, time_ns: u64, counters: Counters, sample: MemorySample) {
        if self.sample.replace(sample) != Some(sample) {
            self.samples.push(time_ns, SampleColumn::from_sample(sample));
            self.raise_peaks(event, &counters);
            self.raise_used_memory_peaks();
        }
    }

    /// Returns the number of the device's events in a bucket, the smallest time slice that the
    /// series stores: a power of two, at least 16.
    ///
    /// [`columns`](Self::columns) is exact to within one bucket.
    #[must_use]
    pub fn bucket_events(&self) -> u64 {
        self.buckets.bucket_values()
    }

    /// Returns a [column](Self::columns) for each time slice between two consecutive times in
    /// `times_ns`, in nanoseconds; one column fewer than times.
    #[must_use]
    pub fn columns_between(&self, times_ns: &[u64]) -> Vec<CounterColumn> {
        times_ns.windows(2).filter_map(|pair| self.columns(pair[0], pair[1], 1).pop()).collect()
    }

    /// Returns the counters over `width` equal slices of the time from `from_ns` to `to_ns`, in
    /// nanoseconds since the recording's time 0.
    ///
    /// Values are exact to within a bucket of [`bucket_events`](Self::bucket_events) events, which
    /// counts in the slice in which it ends. A slice without events repeats the slice before it.
    /// [`Recording::columns`](crate::Recording::columns) is exact at close zoom, too.
    #[must_use]
    pub fn columns(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<CounterColumn> {
        let mut at = self.buckets.ends_by(from_ns);
        let before = at.checked_sub(1).and_then(|before| self.buckets.get(before)).map_or(self.start, |one| one.slice);
        let mut column = before;
        (0..width)
            .map(|index| {
                column = CounterColumn::from_counters(column.event, column.last);
                let until = self.buckets.ends_by(slice_end(from_ns, to_ns, width, index)).max(at);
                self.buckets.for_each_bucket(at, until, |next| column.extend(next));
                at = until;
                column
            })
            .collect()
    }

    /// Returns the driver's memory samples over `width` equal slices of the time from `from_ns` to
    /// `to_ns`, in nanoseconds since the recording's time 0; `None` for slices before the first
    /// sample.
    ///
    /// Exact up to 262,144 samples; beyond that, pairs of adjacent samples are combined.
    #[must_use]
    pub fn samples(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Option<SampleColumn>> {
        let mut at = self.samples.ends_by(from_ns);
        let mut column = at.checked_sub(1).and_then(|before| self.samples.get(before)).map(|before| before.slice);
        (0..width)
            .map(|index| {
                column = column.map(|before| SampleColumn::from_sample(before.last));
                let until = self.samples.ends_by(slice_end(from_ns, to_ns, width, index)).max(at);
                self.samples.for_each_bucket(at, until, |next| column.get_or_insert(*next).extend(next));
                at = until;
                column
            })
            .collect()
    }

    /// Returns the peaks of the device memory used over the whole series, in bytes, by this process
    /// and by all processes; `None` if the recording has no memory samples of the driver.
    #[must_use]
    pub fn used_memory_peaks(&self) -> Option<UsedMemoryPeaks> {
        self.sample.map(|_| self.used_memory_peaks)
    }

    /// Returns the peak of the device's allocated bytes over the recording, and its first moment.
    #[must_use]
    pub fn peak_allocated(&self) -> Peak {
        self.peak_allocated
    }

    /// Returns the peak of the device's active bytes over the recording, and its first moment.
    #[must_use]
    pub fn peak_active(&self) -> Peak {
        self.peak_active
    }

    /// Returns the peak of the device's reserved bytes over the recording, and its first moment.
    #[must_use]
    pub fn peak_reserved(&self) -> Peak {
        self.peak_reserved
    }

    /// Returns the memory that the series occupies, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.memory_bytes() + self.samples.memory_bytes()
    }
}

/// Returns the time, in nanoseconds, at which slice `index` (from 0) ends if `from_ns..to_ns` is
/// divided into `width` equal slices.
pub(crate) fn slice_end(from_ns: u64, to_ns: u64, width: usize, index: usize) -> u64 {
    from_ns + even_part(to_ns.saturating_sub(from_ns), index as u64 + 1, width as u64)
}
