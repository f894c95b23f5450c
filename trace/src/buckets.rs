//! Values over time, of which any stretch is put together from few parts.

/// Buckets that make one of the next level.
const FAN: usize = 8;

/// What is known of a slice of time and can take in the slice that follows.
pub(crate) trait Slice: Copy {
    /// Takes in what comes next.
    fn extend(&mut self, next: &Self);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<S> {
    pub(crate) end_ns: u64,
    pub(crate) slice: S,
}

/// Buckets in order of time, every 8 of them one larger bucket, and so on up.
#[derive(Clone, Debug)]
pub(crate) struct Buckets<S> {
    levels: Vec<Vec<Bucket<S>>>,
}

impl<S> Default for Buckets<S> {
    fn default() -> Self {
        Self { levels: Vec::new() }
    }
}

impl<S: Slice> Buckets<S> {
    /// Adds a bucket of the smallest size. Times must not go back.
    pub(crate) fn push(&mut self, bucket: Bucket<S>) {
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
            let (first, rest) = buckets[buckets.len() - FAN..].split_first().expect("a full group was just counted");
            bucket = *first;
            for next in rest {
                bucket.end_ns = next.end_ns;
                bucket.slice.extend(&next.slice);
            }
        }
    }

    /// The smallest buckets.
    pub(crate) fn smallest(&self) -> &[Bucket<S>] {
        self.levels.first().map_or(&[][..], Vec::as_slice)
    }

    /// How many of the smallest buckets end at or before a time.
    pub(crate) fn ends_by(&self, time_ns: u64) -> usize {
        self.smallest().partition_point(|bucket| bucket.end_ns <= time_ns)
    }

    /// Gives the smallest buckets `from..to` to `each`, in order, as few larger ones.
    pub(crate) fn each(&self, from: usize, to: usize, mut each: impl FnMut(&S)) {
        let mut at = from;
        while at < to {
            let (mut level, mut span) = (0, 1);
            while level + 1 < self.levels.len() && at.is_multiple_of(span * FAN) && at + span * FAN <= to {
                level += 1;
                span *= FAN;
            }
            each(&self.levels[level][at / span].slice);
            at += span;
        }
    }

    /// Bytes of memory that they occupy.
    pub(crate) fn size_in_memory(&self) -> usize {
        self.levels.iter().map(|level| level.len() * size_of::<Bucket<S>>()).sum()
    }
}
