//! Values over time, of which any stretch is put together from few parts, and which take no more memory however many they are.

/// Buckets that make one of the next level.
const FAN: usize = 8;
/// Where the smallest buckets become this many, every two of them are made one, so that a device's counters take 34 MB at most. The
/// 4,000,000 events of a long snapshot still have buckets of 16.
pub(crate) const MAX_BUCKETS: usize = 1 << 18;

/// What is known of a slice of time and can take in the slice that follows.
pub(crate) trait Slice: Copy {
    /// Takes in what comes next.
    fn extend(&mut self, next: &Self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket<S> {
    pub(crate) end_ns: u64,
    pub(crate) slice: S,
}

impl<S: Slice> Bucket<S> {
    #[inline]
    pub(crate) fn extend(&mut self, next: &Self) {
        self.end_ns = next.end_ns;
        self.slice.extend(&next.slice);
    }
}

/// Buckets in order of time, every 8 of them one larger bucket, and so on up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buckets<S> {
    levels: Vec<Vec<Bucket<S>>>,
    /// What was pushed since the last full bucket.
    open: Option<Bucket<S>>,
    /// How many values that is.
    open_values: u64,
    /// Values of a bucket of the smallest level.
    bucket_values: u64,
}

impl<S: Slice> Buckets<S> {
    /// No bucket yet; the smallest have `bucket_values` values each, at least one.
    pub(crate) fn of(bucket_values: u64) -> Self {
        assert!(bucket_values > 0, "a bucket has values");
        Self { levels: Vec::new(), open: None, open_values: 0, bucket_values }
    }

    /// Takes one more value. Times must not go back.
    #[inline]
    pub(crate) fn push(&mut self, end_ns: u64, slice: S) {
        self.push_bucket(Bucket { end_ns, slice }, 1);
    }

    /// Takes a bucket of `values` values, which must not be more than the open one has room for.
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

    /// Puts the open bucket away, which is full.
    #[inline(never)]
    fn close(&mut self) {
        self.open_values = 0;
        if let Some(full) = self.open.take() {
            self.push_full(full);
        }
        if self.smallest().len() == MAX_BUCKETS {
            self.join_pairs();
        }
    }

    fn push_full(&mut self, bucket: Bucket<S>) {
        let mut bucket = bucket;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let buckets = &mut self.levels[level];
            buckets.push(bucket);
            if !buckets.len().is_multiple_of(FAN) {
                break;
            }
            bucket = joined(&buckets[buckets.len() - FAN..]);
        }
    }

    /// Makes every two of the smallest buckets one. There is an even number of them, and none is open.
    fn join_pairs(&mut self) {
        self.bucket_values = self.bucket_values.saturating_mul(2);
        let mut smallest = std::mem::take(&mut self.levels).swap_remove(0);
        for pair in 0..smallest.len() / 2 {
            smallest[pair] = joined(&smallest[2 * pair..2 * pair + 2]);
        }
        smallest.truncate(smallest.len() / 2);
        smallest.into_iter().for_each(|bucket| self.push_full(bucket));
    }

    /// Values of a bucket of the smallest level.
    pub(crate) fn bucket_values(&self) -> u64 {
        self.bucket_values
    }

    /// The full buckets of the smallest level.
    fn smallest(&self) -> &[Bucket<S>] {
        self.levels.first().map_or(&[][..], Vec::as_slice)
    }

    /// How many of the smallest buckets there are; the last may not be full.
    pub(crate) fn len(&self) -> usize {
        self.smallest().len() + usize::from(self.open.is_some())
    }

    /// One of the smallest buckets.
    pub(crate) fn get(&self, index: usize) -> Option<&Bucket<S>> {
        let smallest = self.smallest();
        if index == smallest.len() { self.open.as_ref() } else { smallest.get(index) }
    }

    /// Every `size` of the smallest buckets as one, with the number of its values; the last may be of fewer.
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
            .map(move |group| (joined(group), whole_values))
            .chain(last.map(move |last| (last, last_values)))
    }

    /// How many of the smallest buckets end at or before a time.
    pub(crate) fn ends_by(&self, time_ns: u64) -> usize {
        let full = self.smallest();
        let by = full.partition_point(|bucket| bucket.end_ns <= time_ns);
        by + usize::from(by == full.len() && self.open.as_ref().is_some_and(|open| open.end_ns <= time_ns))
    }

    /// Gives the smallest buckets `from..to` to `each`, in order, as few larger ones.
    pub(crate) fn each(&self, from: usize, to: usize, mut each: impl FnMut(&S)) {
        let full = to.min(self.smallest().len());
        let mut at = from;
        while at < full {
            let (mut level, mut span) = (0, 1);
            while level + 1 < self.levels.len() && at.is_multiple_of(span * FAN) && at + span * FAN <= full {
                level += 1;
                span *= FAN;
            }
            each(&self.levels[level][at / span].slice);
            at += span;
        }
        if let Some(open) = self.open.as_ref().filter(|_| at < to) {
            each(&open.slice);
        }
    }

    /// Bytes of memory that they occupy.
    pub(crate) fn size_in_memory(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<Bucket<S>>()).sum()
    }
}

/// Buckets that follow each other as one; there must be one.
fn joined<S: Slice>(buckets: &[Bucket<S>]) -> Bucket<S> {
    let (first, rest) = buckets.split_first().expect("a group is of at least one");
    let mut joined = *first;
    rest.iter().for_each(|next| joined.extend(next));
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Range(u64, u64);

    impl Slice for Range {
        fn extend(&mut self, next: &Self) {
            assert_eq!(self.1 + 1, next.0, "slices come in order");
            self.1 = next.1;
        }
    }

    #[test]
    fn however_many_come_memory_is_bounded_and_nothing_is_lost() {
        let mut buckets = Buckets::of(1);
        let mut most = 0;
        for value in 0..3_000_017 {
            buckets.push(value * 10, Range(value, value));
            most = most.max(buckets.len());
        }
        assert_eq!(buckets.bucket_values(), 16);
        assert!(most <= MAX_BUCKETS);
        assert!(buckets.size_in_memory() < 2 * MAX_BUCKETS * FAN / (FAN - 1) * size_of::<Bucket<Range>>());
        for (from, to) in [(0, buckets.len()), (1, 2), (77, 77), (99, 187_500), (187_500, 187_502)] {
            let (mut all, mut parts) = (None::<Range>, 0);
            buckets.each(from, to, |next| {
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
