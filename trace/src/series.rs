//! Counters over time, at any zoom for the cost of its width.
//!
//! Every 16 events of a device make a bucket with the least and the greatest value of each counter, every 8 buckets a larger one,
//! and so on up; a slice of time is put together from the largest buckets that lie within it. What the driver said is kept likewise,
//! but by itself and to the sample: it comes seldom, and a recording without any pays nothing for it.

use crate::buckets::{Bucket, Buckets, Slice};
use crate::state::{Counters, MemorySample};

/// Events of the smallest bucket. Below that, drawing replays the events themselves.
const BUCKET_EVENTS: u32 = 16;

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

fn each(a: Counters, b: Counters, pick: fn(u64, u64) -> u64) -> Counters {
    Counters {
        allocated: pick(a.allocated, b.allocated),
        active: pick(a.active, b.active),
        reserved: pick(a.reserved, b.reserved),
        requested: pick(a.requested, b.requested),
    }
}

impl Column {
    /// A slice in which nothing happens.
    pub(crate) fn still(event: u64, counters: Counters) -> Self {
        Self { event, last: counters, min: counters, max: counters }
    }
}

impl Slice for Column {
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
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What was there before the first event.
    start: Column,
    buckets: Buckets<Column>,
    open: Option<Bucket<Column>>,
    open_events: u32,
    /// A bucket for each sample that says something new.
    samples: Buckets<SampleColumn>,
    /// The last of them.
    sample: Option<MemorySample>,
    peak_allocated: Peak,
    peak_active: Peak,
    peak_reserved: Peak,
    used_peaks: UsedPeaks,
}

impl Series {
    /// A series that begins with `counters` at the moment `event`.
    pub(crate) fn new(event: u64, counters: Counters) -> Self {
        let mut series = Self { start: Column::still(event, counters), ..Self::default() };
        series.raise(event, counters);
        series
    }

    fn raise(&mut self, event: u64, counters: Counters) {
        self.peak_allocated.raise(event, counters.allocated);
        self.peak_active.raise(event, counters.active);
        self.peak_reserved.raise(event, counters.reserved);
        if let Some(sample) = self.sample {
            let by_process = counters.reserved.saturating_add(sample.used_by_context);
            let in_all = by_process.saturating_add(sample.used_by_others);
            self.used_peaks.by_process = self.used_peaks.by_process.max(by_process);
            self.used_peaks.in_all = self.used_peaks.in_all.max(in_all);
        }
    }

    /// Takes the counters after one more event. Times must not go back.
    pub(crate) fn push(&mut self, event: u64, time_ns: u64, counters: Counters) {
        self.raise(event, counters);
        let next = Column::still(event, counters);
        match &mut self.open {
            Some(open) => {
                open.end_ns = time_ns;
                open.slice.extend(&next);
            }
            None => self.open = Some(Bucket { end_ns: time_ns, slice: next }),
        }
        self.open_events += 1;
        if self.open_events == BUCKET_EVENTS
            && let Some(full) = self.open.take()
        {
            self.open_events = 0;
            self.buckets.push(full);
        }
    }

    /// Takes what the driver says at the moment `event`, at which the counters are `counters`. Times must not go back.
    pub(crate) fn push_sample(&mut self, event: u64, time_ns: u64, counters: Counters, sample: MemorySample) {
        if self.sample.replace(sample) != Some(sample) {
            self.samples.push(Bucket { end_ns: time_ns, slice: SampleColumn::still(sample) });
            self.raise(event, counters);
        }
    }

    /// The counters over `width` equal slices of the time from `from_ns` to `to_ns`, to within a bucket of 16 events: a bucket
    /// counts where it ends. A slice without events repeats the one before. [`Recording::columns`](crate::Recording::columns) is
    /// exact where that matters.
    #[must_use]
    pub fn columns(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Column> {
        let smallest = self.buckets.smallest();
        let mut at = self.buckets.ends_by(from_ns);
        let before = if at == 0 { self.start } else { smallest[at - 1].slice };
        let mut column = Column::still(before.event, before.last);
        let mut open = self.open.filter(|open| open.end_ns > from_ns);
        if let (Some(open), None) = (self.open, open) {
            column = Column::still(open.slice.event, open.slice.last);
        }
        (0..width)
            .map(|index| {
                let slice_end = slice_end(from_ns, to_ns, width, index);
                column = Column::still(column.event, column.last);
                let until = self.buckets.ends_by(slice_end).max(at);
                self.buckets.each(at, until, |next| column.extend(next));
                at = until;
                if let Some(last) = open.take_if(|open| at == smallest.len() && open.end_ns <= slice_end) {
                    column.extend(&last.slice);
                }
                column
            })
            .collect()
    }

    /// What the driver said over the same slices, exactly; `None` for a slice by whose end it had not said anything.
    #[must_use]
    pub fn samples(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Option<SampleColumn>> {
        let mut at = self.samples.ends_by(from_ns);
        let mut column = at.checked_sub(1).map(|before| self.samples.smallest()[before].slice);
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
