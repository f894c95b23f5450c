//! Counters over time, at any zoom for the cost of its width.
//!
//! Every 16 events of a device make a bucket with the least and the greatest value of each counter, every 8 buckets a larger one,
//! and so on up; a slice of time is put together from the largest buckets that lie within it. From 4,194,304 events on the smallest
//! buckets are of 32, and so on, so that the memory taken has a bound and a timeline's cost is that of its width. What the driver said
//! is kept likewise, but by itself and, up to 262,144 of them, to the sample: it comes seldom, and a recording without any pays
//! nothing for it.

use crate::buckets::{Buckets, Slice};
use crate::state::{Counters, MemorySample};

/// Events of the smallest bucket of a short recording. Below that, drawing replays the events themselves.
const BUCKET_EVENTS: u64 = 16;

/// The counters over one slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// The moment at the slice's end.
    pub event: u64,
    /// The counters at that moment.
    pub last: Counters,
    /// The least of each counter in the slice.
    pub min: Counters,
    /// The greatest of each counter in the slice.
    pub max: Counters,
}

/// What the driver said of a device's memory over one slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleColumn {
    /// What it had said by the slice's end.
    pub last: MemorySample,
    /// The least of each number in the slice.
    pub min: MemorySample,
    /// The greatest of each number in the slice.
    pub max: MemorySample,
}

/// The greatest value of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The first moment at which it is reached.
    pub event: u64,
    /// The value.
    pub bytes: u64,
}

impl Peak {
    #[inline]
    fn raise(&mut self, event: u64, bytes: u64) {
        if bytes > self.bytes {
            *self = Self { event, bytes };
        }
    }
}

/// The most memory in use, in bytes, as far as the driver has said: every sample counts with what is reserved until the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedPeaks {
    /// Held by this process: in segments and outside the allocator.
    pub by_process: u64,
    /// Held by this process and by others.
    pub in_all: u64,
}

#[inline]
fn each(a: Counters, b: Counters, pick: impl Fn(u64, u64) -> u64) -> Counters {
    Counters {
        allocated: pick(a.allocated, b.allocated),
        active: pick(a.active, b.active),
        reserved: pick(a.reserved, b.reserved),
        requested: pick(a.requested, b.requested),
    }
}

impl Column {
    /// A slice in which nothing happens.
    #[inline]
    pub(crate) fn still(event: u64, counters: Counters) -> Self {
        Self { event, last: counters, min: counters, max: counters }
    }
}

impl Slice for Column {
    #[inline]
    fn extend(&mut self, next: &Self) {
        self.event = next.event;
        self.last = next.last;
        self.min = each(self.min, next.min, u64::min);
        self.max = each(self.max, next.max, u64::max);
    }
}

fn each_sampled(a: MemorySample, b: MemorySample, pick: fn(u64, u64) -> u64) -> MemorySample {
    MemorySample {
        used_by_context: pick(a.used_by_context, b.used_by_context),
        used_by_others: pick(a.used_by_others, b.used_by_others),
        free: pick(a.free, b.free),
    }
}

impl SampleColumn {
    /// A slice in which the driver says nothing new.
    fn still(sample: MemorySample) -> Self {
        Self { last: sample, min: sample, max: sample }
    }
}

impl Slice for SampleColumn {
    fn extend(&mut self, next: &Self) {
        self.last = next.last;
        self.min = each_sampled(self.min, next.min, u64::min);
        self.max = each_sampled(self.max, next.max, u64::max);
    }
}

/// The counters of one device over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// What was there before the first event.
    start: Column,
    buckets: Buckets<Column>,
    /// A bucket for each sample that says something new.
    samples: Buckets<SampleColumn>,
    /// The last of them.
    sample: Option<MemorySample>,
    /// What is reserved now.
    reserved: u64,
    peak_allocated: Peak,
    peak_active: Peak,
    peak_reserved: Peak,
    used_peaks: UsedPeaks,
}

impl Default for Series {
    fn default() -> Self {
        Self::new(0, Counters::default())
    }
}

/// What a series is made of, for writing it down.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) start: &'a Column,
    pub(crate) buckets: &'a Buckets<Column>,
    pub(crate) samples: &'a Buckets<SampleColumn>,
    /// The moments of the greatest number of bytes allocated, active and reserved.
    pub(crate) peak_events: [u64; 3],
    pub(crate) used_peaks: UsedPeaks,
}

impl Series {
    /// A series that begins with `counters` at the moment `event`.
    pub(crate) fn new(event: u64, counters: Counters) -> Self {
        let peak = |bytes| Peak { event: if bytes > 0 { event } else { 0 }, bytes };
        Self {
            start: Column::still(event, counters),
            buckets: Buckets::of(BUCKET_EVENTS),
            samples: Buckets::of(1),
            sample: None,
            reserved: counters.reserved,
            peak_allocated: peak(counters.allocated),
            peak_active: peak(counters.active),
            peak_reserved: peak(counters.reserved),
            used_peaks: UsedPeaks::default(),
        }
    }

    /// What it is made of.
    pub(crate) fn parts(&self) -> Parts<'_> {
        Parts {
            start: &self.start,
            buckets: &self.buckets,
            samples: &self.samples,
            peak_events: [self.peak_allocated.event, self.peak_active.event, self.peak_reserved.event],
            used_peaks: self.used_peaks,
        }
    }

    /// Puts a series together from what was written down. The peaks' bytes follow from the buckets.
    pub(crate) fn from_parts(
        start: Column,
        buckets: Buckets<Column>,
        samples: Buckets<SampleColumn>,
        peak_events: [u64; 3],
        used_peaks: UsedPeaks,
    ) -> Self {
        let mut whole = start;
        buckets.each(0, buckets.len(), |next| whole.extend(next));
        let [allocated, active, reserved] = peak_events;
        Self {
            start,
            sample: samples.len().checked_sub(1).and_then(|last| samples.get(last)).map(|last| last.slice.last),
            reserved: whole.last.reserved,
            peak_allocated: Peak { event: allocated, bytes: whole.max.allocated },
            peak_active: Peak { event: active, bytes: whole.max.active },
            peak_reserved: Peak { event: reserved, bytes: whole.max.reserved },
            used_peaks,
            buckets,
            samples,
        }
    }

    #[inline]
    fn raise(&mut self, event: u64, counters: &Counters) {
        self.peak_allocated.raise(event, counters.allocated);
        self.peak_active.raise(event, counters.active);
        // Seldom: a segment came or went.
        if counters.reserved != self.reserved {
            self.reserved = counters.reserved;
            self.peak_reserved.raise(event, counters.reserved);
            self.raise_used();
        }
    }

    fn raise_used(&mut self) {
        if let Some(sample) = self.sample {
            let by_process = self.reserved.saturating_add(sample.used_by_context);
            let in_all = by_process.saturating_add(sample.used_by_others);
            self.used_peaks.by_process = self.used_peaks.by_process.max(by_process);
            self.used_peaks.in_all = self.used_peaks.in_all.max(in_all);
        }
    }

    /// Takes the counters after one more event. Times must not go back.
    #[inline]
    pub(crate) fn push(&mut self, event: u64, time_ns: u64, counters: Counters) {
        self.raise(event, &counters);
        self.buckets.push(time_ns, Column::still(event, counters));
    }

    /// Takes what the driver says at the moment `event`, at which the counters are `counters`. Times must not go back.
    pub(crate) fn push_sample(&mut self, event: u64, time_ns: u64, counters: Counters, sample: MemorySample) {
        if self.sample.replace(sample) != Some(sample) {
            self.samples.push(time_ns, SampleColumn::still(sample));
            self.raise(event, &counters);
            self.raise_used();
        }
    }

    /// How many events of the device the smallest buckets are of: a power of two, 16 or more. A timeline whose columns are of fewer
    /// events is made from the events themselves.
    #[must_use]
    pub fn bucket_events(&self) -> u64 {
        self.buckets.bucket_values()
    }

    /// The counters over `width` equal slices of the time from `from_ns` to `to_ns`, to within a bucket of
    /// [`bucket_events`](Self::bucket_events): a bucket counts where it ends. A slice without events repeats the one before.
    /// [`Recording::columns`](crate::Recording::columns) is exact where that matters.
    #[must_use]
    pub fn columns(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Column> {
        let mut at = self.buckets.ends_by(from_ns);
        let before = at.checked_sub(1).and_then(|before| self.buckets.get(before)).map_or(self.start, |one| one.slice);
        let mut column = before;
        (0..width)
            .map(|index| {
                column = Column::still(column.event, column.last);
                let until = self.buckets.ends_by(slice_end(from_ns, to_ns, width, index)).max(at);
                self.buckets.each(at, until, |next| column.extend(next));
                at = until;
                column
            })
            .collect()
    }

    /// What the driver said over the same slices, exactly while it spoke fewer than 262,144 times; `None` for a slice by whose end it
    /// had not said anything.
    #[must_use]
    pub fn samples(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Option<SampleColumn>> {
        let mut at = self.samples.ends_by(from_ns);
        let mut column = at.checked_sub(1).and_then(|before| self.samples.get(before)).map(|before| before.slice);
        (0..width)
            .map(|index| {
                column = column.map(|before| SampleColumn::still(before.last));
                let until = self.samples.ends_by(slice_end(from_ns, to_ns, width, index)).max(at);
                self.samples.each(at, until, |next| column.get_or_insert(*next).extend(next));
                at = until;
                column
            })
            .collect()
    }

    /// The most memory in use; `None` where the driver said nothing.
    #[must_use]
    pub fn used_peaks(&self) -> Option<UsedPeaks> {
        self.sample.map(|_| self.used_peaks)
    }

    /// The greatest number of bytes allocated.
    #[must_use]
    pub fn peak_allocated(&self) -> Peak {
        self.peak_allocated
    }

    /// The greatest number of bytes in active blocks.
    #[must_use]
    pub fn peak_active(&self) -> Peak {
        self.peak_active
    }

    /// The greatest number of bytes in segments.
    #[must_use]
    pub fn peak_reserved(&self) -> Peak {
        self.peak_reserved
    }

    /// Bytes of memory that it occupies.
    pub(crate) fn size_in_memory(&self) -> usize {
        self.buckets.size_in_memory() + self.samples.size_in_memory()
    }
}

/// The last nanosecond of slice `index` of `width` equal ones.
pub(crate) fn slice_end(from_ns: u64, to_ns: u64, width: usize, index: usize) -> u64 {
    let span = u128::from(to_ns.saturating_sub(from_ns));
    from_ns + (span * (index as u128 + 1) / width as u128) as u64
}
