//! Counters over time, at any zoom for the cost of its width.
//!
//! Every 16 events of a device make a bucket with the least and the greatest value of each counter, every 8 buckets a larger one,
//! and so on up; a slice of time is put together from the largest buckets that lie within it.

use crate::state::Counters;

/// Events of the smallest bucket. Below that, drawing replays the events themselves.
const BUCKET_EVENTS: u32 = 16;
/// Buckets that make one of the next level.
const FAN: usize = 8;

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

    /// Takes in what comes next.
    pub(crate) fn extend(&mut self, next: &Self) {
        self.event = next.event;
        self.last = next.last;
        self.min = each(self.min, next.min, u64::min);
        self.max = each(self.max, next.max, u64::max);
    }
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    end_ns: u64,
    column: Column,
}

/// The counters of one device over time.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What was there before the first event.
    start: Column,
    levels: Vec<Vec<Bucket>>,
    open: Option<Bucket>,
    open_events: u32,
    peak_allocated: Peak,
    peak_active: Peak,
    peak_reserved: Peak,
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
    }

    /// Takes the counters after one more event. Times must not go back.
    pub(crate) fn push(&mut self, event: u64, time_ns: u64, counters: Counters) {
        self.raise(event, counters);
        let next = Column::still(event, counters);
        match &mut self.open {
            Some(open) => {
                open.end_ns = time_ns;
                open.column.extend(&next);
            }
            None => self.open = Some(Bucket { end_ns: time_ns, column: next }),
        }
        self.open_events += 1;
        if self.open_events == BUCKET_EVENTS
            && let Some(full) = self.open.take()
        {
            self.open_events = 0;
            self.close(full);
        }
    }

    fn close(&mut self, full: Bucket) {
        let mut bucket = full;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let buckets = &mut self.levels[level];
            buckets.push(bucket);
            if !buckets.len().is_multiple_of(FAN) {
                break;
            }
            let (first, rest) = buckets[buckets.len() - FAN..].split_first().expect("a full group was just counted");
            bucket = *first;
            for next in rest {
                bucket.end_ns = next.end_ns;
                bucket.column.extend(&next.column);
            }
        }
    }

    /// The counters over the smallest buckets `from..to`.
    fn fold(&self, from: usize, to: usize, into: &mut Column) {
        let mut at = from;
        while at < to {
            let (mut level, mut span) = (0, 1);
            while level + 1 < self.levels.len() && at.is_multiple_of(span * FAN) && at + span * FAN <= to {
                level += 1;
                span *= FAN;
            }
            into.extend(&self.levels[level][at / span].column);
            at += span;
        }
    }

    /// The counters over `width` equal slices of the time from `from_ns` to `to_ns`, to within a bucket of 16 events: a bucket
    /// counts where it ends. A slice without events repeats the one before. [`Recording::columns`](crate::Recording::columns) is
    /// exact where that matters.
    #[must_use]
    pub fn columns(&self, from_ns: u64, to_ns: u64, width: usize) -> Vec<Column> {
        let smallest = self.levels.first().map_or(&[][..], Vec::as_slice);
        let ends_by = |time: u64| smallest.partition_point(|bucket| bucket.end_ns <= time);
        let mut at = ends_by(from_ns);
        let before = if at == 0 { self.start } else { smallest[at - 1].column };
        let mut column = Column::still(before.event, before.last);
        let mut open = self.open.filter(|open| open.end_ns > from_ns);
        if let (Some(open), None) = (self.open, open) {
            column = Column::still(open.column.event, open.column.last);
        }
        (0..width)
            .map(|index| {
                let slice_end = slice_end(from_ns, to_ns, width, index);
                column = Column::still(column.event, column.last);
                let until = ends_by(slice_end).max(at);
                self.fold(at, until, &mut column);
                at = until;
                if let Some(last) = open.take_if(|open| at == smallest.len() && open.end_ns <= slice_end) {
                    column.extend(&last.column);
                }
                column
            })
            .collect()
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
        self.levels.iter().map(|level| level.len() * size_of::<Bucket>()).sum()
    }
}

/// The last nanosecond of slice `index` of `width` equal ones.
pub(crate) fn slice_end(from_ns: u64, to_ns: u64, width: usize, index: usize) -> u64 {
    let span = u128::from(to_ns.saturating_sub(from_ns));
    from_ns + (span * (index as u128 + 1) / width as u128) as u64
}
