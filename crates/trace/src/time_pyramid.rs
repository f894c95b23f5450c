//! A pyramid of aggregates over time: any time range is a combination of few buckets, and memory
//! use is bounded however many values are added.

/// Number of adjacent buckets of a [`TimePyramid`] that form one bucket of the next level.
const BUCKETS_PER_PARENT: usize = 8;
/// Number of buckets in the lowest level of a [`TimePyramid`] at which it merges pairs of them, so
/// that a device's counters take at most 34 MB. The 4,000,000 events of a long snapshot still have
/// buckets of 16 events.
pub(crate) const MAX_BUCKETS: usize = 1 << 18;

/// Values combined over a time slice, for example minimum and maximum.
pub(crate) trait TimeSlice: Copy {
    /// Extends this slice by `next`, the slice that follows it in time.
    fn extend(&mut self, next: &Self);
}

/// The combined values of a time slice, and the time at which the slice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket<S> {
    pub(crate) end_ns: u64,
    pub(crate) slice: S,
}

impl<S: TimeSlice> Bucket<S> {
    /// Extends the bucket by `next`, the bucket that follows it in time.
    #[inline]
    pub(crate) fn extend(&mut self, next: &Self) {
        self.end_ns = next.end_ns;
        self.slice.extend(&next.slice);
    }
}

/// Values combined into buckets in time order; every 8 buckets of a level form one bucket of the
/// next. The lowest level has the smallest buckets. Any time range is a combination of few buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimePyramid<S> {
    /// The full buckets of each level, from the lowest level on.
    levels: Vec<Vec<Bucket<S>>>,
    /// The values since the last full bucket.
    open: Option<Bucket<S>>,
    /// The number of values in `open`.
    open_values: u64,
    /// Number of values in a full bucket of the lowest level.
    bucket_values: u64,
}

impl<S: TimeSlice> TimePyramid<S> {
    /// Creates an empty pyramid whose smallest buckets have `bucket_values` (at least 1) values
    /// each.
    pub(crate) fn new(bucket_values: u64) -> Self {
        assert!(bucket_values > 0, "a bucket holds at least one value");
        Self { levels: Vec::new(), open: None, open_values: 0, bucket_values }
    }

    /// Adds one value, as a slice that ends at `end_ns` nanoseconds. Times must not decrease.
    #[inline]
    pub(crate) fn push(&mut self, end_ns: u64, slice: S) {
        self.push_bucket(Bucket { end_ns, slice }, 1);
    }

    /// Adds `bucket`, which combines `values` values, to the bucket of the lowest level that is
    /// being filled, or begins one with it. That bucket must have room for all of the values.
    #[inline]
    pub(crate) fn push_bucket(&mut self, bucket: Bucket<S>, values: u64) {
        match &mut self.open {
            Some(open) => open.extend(&bucket),
            None => self.open = Some(bucket),
        }
        self.open_values += values;
        if self.open_values >= self.bucket_values {
            self.close();
        }
    }

    /// Ends the last bucket of the lowest level, which is full: the next value begins a new one.
    #[inline(never)]
    fn close(&mut self) {
        self.open_values = 0;
        if let Some(full) = self.open.take() {
            self.push_full(full);
        }
        if self.smallest().len() == MAX_BUCKETS {
            self.merge_pairs();
        }
    }

    /// Adds a full bucket to the lowest level. A level that has 8 new buckets then adds their
    /// combination to the next level.
    fn push_full(&mut self, mut bucket: Bucket<S>) {
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let buckets = &mut self.levels[level];
            buckets.push(bucket);
            if !buckets.len().is_multiple_of(BUCKETS_PER_PARENT) {
                break;
            }
            bucket = merged(&buckets[buckets.len() - BUCKETS_PER_PARENT..]);
        }
    }

    /// Merges pairs of buckets of the lowest level, so that they hold twice as many values. All
    /// must be full and their number even.
    fn merge_pairs(&mut self) {
        self.bucket_values = self.bucket_values.saturating_mul(2);
        let mut smallest = std::mem::take(&mut self.levels).swap_remove(0);
        for pair in 0..smallest.len() / 2 {
            smallest[pair] = merged(&smallest[2 * pair..2 * pair + 2]);
        }
        smallest.truncate(smallest.len() / 2);
        smallest.into_iter().for_each(|bucket| self.push_full(bucket));
    }

    /// Returns the number of values in a full bucket of the lowest level.
    pub(crate) fn bucket_values(&self) -> u64 {
        self.bucket_values
    }

    /// Returns the full buckets of the lowest level, which has the smallest buckets, in time order.
    fn smallest(&self) -> &[Bucket<S>] {
        self.levels.first().map_or(&[][..], Vec::as_slice)
    }

    /// Returns the number of buckets in the lowest level, including a last one that is not full.
    pub(crate) fn len(&self) -> usize {
        self.smallest().len() + usize::from(self.open.is_some())
    }

    /// Returns the bucket of the lowest level at `index` (from 0) in time order, or `None`. The
    /// last may not be full.
    pub(crate) fn get(&self, index: usize) -> Option<&Bucket<S>> {
        let smallest = self.smallest();
        if index == smallest.len() { self.open.as_ref() } else { smallest.get(index) }
    }

    /// Merges every `size` adjacent buckets of the lowest level and returns the merged buckets,
    /// each with its number of values. The last one may combine fewer buckets.
    pub(crate) fn grouped(&self, size: usize) -> impl Iterator<Item = (Bucket<S>, u64)> + '_ {
        let open = self.open.as_slice();
        let full = self.smallest();
        let rest = full.len() % size;
        let (whole, rest) = full.split_at(full.len() - rest);
        let last = rest.iter().chain(open).copied().reduce(|mut all, next| {
            all.extend(&next);
            all
        });
        let last_values = rest.len() as u64 * self.bucket_values + self.open_values;
        let whole_values = size as u64 * self.bucket_values;
        whole
            .chunks_exact(size)
            .map(move |group| (merged(group), whole_values))
            .chain(last.map(move |last| (last, last_values)))
    }

    /// Returns how many buckets of the lowest level end at or before `time_ns` nanoseconds.
    pub(crate) fn ends_by(&self, time_ns: u64) -> usize {
        let full = self.smallest();
        let by = full.partition_point(|bucket| bucket.end_ns <= time_ns);
        by + usize::from(by == full.len() && self.open.as_ref().is_some_and(|open| open.end_ns <= time_ns))
    }

    /// Calls `each`, in time order, with as few buckets of any level as possible that cover the
    /// buckets of the lowest level with the indexes `from..to` (from 0, `to` excluded).
    pub(crate) fn for_each_bucket(&self, from: usize, to: usize, mut each: impl FnMut(&S)) {
        let full = to.min(self.smallest().len());
        let mut at = from;
        while at < full {
            let (mut level, mut span) = (0, 1);
            while level + 1 < self.levels.len()
                && at.is_multiple_of(span * BUCKETS_PER_PARENT)
                && at + span * BUCKETS_PER_PARENT <= full
            {
                level += 1;
                span *= BUCKETS_PER_PARENT;
            }
            each(&self.levels[level][at / span].slice);
            at += span;
        }
        if let Some(open) = self.open.as_ref().filter(|_| at < to) {
            each(&open.slice);
        }
    }

    /// Returns the memory that the pyramid occupies, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<Bucket<S>>()).sum()
    }
}

/// Merges consecutive buckets, at least one, into one bucket.
fn merged<S: TimeSlice>(buckets: &[Bucket<S>]) -> Bucket<S> {
    let (first, rest) = buckets.split_first().expect("a group has at least one bucket");
    let mut merged = *first;
    rest.iter().for_each(|next| merged.extend(next));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time slice that holds the first and the last of its values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Range(u64, u64);

    impl TimeSlice for Range {
        fn extend(&mut self, next: &Self) {
            assert_eq!(self.1 + 1, next.0, "slices are added in order");
            self.1 = next.1;
        }
    }

    #[test]
    fn memory_is_bounded_and_no_value_is_lost() {
        let mut buckets = TimePyramid::new(1);
        let mut largest_len = 0;
        for value in 0..3_000_017 {
            buckets.push(value * 10, Range(value, value));
            largest_len = largest_len.max(buckets.len());
        }
        assert_eq!(buckets.bucket_values(), 16);
        assert!(largest_len <= MAX_BUCKETS);
        assert!(
            buckets.memory_bytes()
                < 2 * MAX_BUCKETS * BUCKETS_PER_PARENT / (BUCKETS_PER_PARENT - 1) * size_of::<Bucket<Range>>()
        );
        for (from, to) in [(0, buckets.len()), (1, 2), (77, 77), (99, 187_500), (187_500, 187_502)] {
            let (mut all, mut parts) = (None::<Range>, 0);
            buckets.for_each_bucket(from, to, |next| {
                parts += 1;
                match &mut all {
                    Some(all) => all.extend(next),
                    None => all = Some(*next),
                }
            });
            let expected = (from < to).then(|| Range(from as u64 * 16, (to as u64 * 16 - 1).min(3_000_016)));
            assert_eq!(all, expected);
            assert!(parts <= 2 * 7 * 6 + 1);
        }
        assert_eq!(buckets.ends_by(0), 0);
        assert_eq!(buckets.ends_by(150), 1);
        assert_eq!(buckets.ends_by(u64::MAX), buckets.len());
        let groups: Vec<_> = buckets.grouped(1000).collect();
        assert_eq!(groups.iter().map(|(_, values)| values).sum::<u64>(), 3_000_017);
        assert_eq!(groups[0].0.slice, Range(0, 15_999));
        assert_eq!(groups.last().map(|(bucket, _)| bucket.slice.1), Some(3_000_016));
    }
}
