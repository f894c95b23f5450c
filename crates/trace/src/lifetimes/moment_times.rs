//! The times of a recording's moments.

/// The time of every moment of a recording, at 4 bytes an event.
///
/// With a limit ([`with_limit`](Self::with_limit)), a long recording takes no more memory: then
/// every second moment is kept, later every fourth, and so on, and the times between are
/// interpolated. An interpolated time is between the exact times of the two kept moments around it.
/// Later moments never have an earlier time.
///
/// ```
/// let mut times = vramscope_trace::MomentTimes::new();
/// for (moment, time_ns) in [(0, 100), (1, 100), (2, 250)] {
///     times.push(moment, time_ns);
/// }
/// assert_eq!((times.at(1), times.at(2)), (100, 250));
/// assert_eq!((times.moment_at(249), times.moment_at(250)), (1, 2));
/// ```
#[derive(Clone, Debug)]
pub struct MomentTimes {
    groups: Vec<TimeGroup>,
    /// Nanoseconds since the base of the moment's group, of every moment that is kept.
    offsets: Vec<u32>,
    /// Distance in moments between two kept moments of a group, from its first on; a power of two.
    stride: u64,
    /// Target for the number of kept moments, which exceeds it by at most a factor of two.
    limit: usize,
    /// The number of kept moments at which the stride doubles.
    thin_at: usize,
}

/// Consecutive moments. The kept moments of a group are less than 2³² ns (4.3 s) after its first.
#[derive(Clone, Copy, Debug)]
struct TimeGroup {
    first_moment: u64,
    /// Position of the first moment in [`MomentTimes::offsets`]; at least this one is kept.
    start: usize,
    /// Time of the first moment.
    base_ns: u64,
    last_moment: u64,
    /// Time of the last moment, exact.
    last_ns: u64,
}

impl Default for MomentTimes {
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

impl MomentTimes {
    /// Creates an empty list that keeps the exact time of every moment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list that keeps the exact times of up to about `limit` moments.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        let limit = limit.max(2);
        Self { groups: Vec::new(), offsets: Vec::new(), stride: 1, limit, thin_at: limit }
    }

    /// Adds a moment and its time in nanoseconds; moments must increase, others are ignored. A time
    /// that is earlier than that of the moment before counts as equal to it.
    #[inline]
    pub fn push(&mut self, moment: u64, time_ns: u64) {
        let Some(last) = self.groups.last_mut() else { return self.begin_group(moment, time_ns) };
        if moment <= last.last_moment {
            return;
        }
        let time_ns = time_ns.max(last.last_ns);
        let follows = last.last_moment + 1 == moment;
        match u32::try_from(time_ns - last.base_ns) {
            Ok(offset) if follows => {
                (last.last_moment, last.last_ns) = (moment, time_ns);
                if (moment - last.first_moment) & (self.stride - 1) == 0 {
                    self.keep(offset);
                }
            }
            _ => self.begin_group(moment, time_ns),
        }
    }

    /// Begins a new group of moments with the moment `moment`, at `time_ns` nanoseconds.
    #[inline(never)]
    fn begin_group(&mut self, moment: u64, time_ns: u64) {
        let start = self.offsets.len();
        let group = TimeGroup { first_moment: moment, start, base_ns: time_ns, last_moment: moment, last_ns: time_ns };
        self.groups.push(group);
        self.keep(0);
    }

    /// Keeps a moment: adds the offset of its time from the base of its group, the last one.
    #[inline]
    fn keep(&mut self, offset: u32) {
        self.offsets.push(offset);
        if self.offsets.len() >= self.thin_at {
            self.thin();
        }
    }

    /// Doubles the stride: drops every second kept moment of each group, and joins groups of one
    /// kept moment that then are at most a stride apart.
    #[inline(never)]
    fn thin(&mut self) {
        self.stride = self.stride.saturating_mul(2).min(1 << 62);
        let (groups, offsets) = (std::mem::take(&mut self.groups), std::mem::take(&mut self.offsets));
        for (index, group) in groups.iter().enumerate() {
            let kept = &offsets[group.start..groups.get(index + 1).map_or(offsets.len(), |next| next.start)];
            let kept_before = self.offsets.len();
            if let Some(last) = self.groups.last_mut()
                && kept.len() <= 2
                && last.start + 1 == kept_before
                && group.last_moment - last.first_moment < self.stride
            {
                (last.last_moment, last.last_ns) = (group.last_moment, group.last_ns);
                continue;
            }
            self.groups.push(TimeGroup { start: kept_before, ..*group });
            self.offsets.extend(kept.iter().step_by(2));
        }
        // Only many groups, between which moments are missing, can exceed the limit now; thinning
        // again soon would not help.
        self.thin_at = self.limit.max(self.offsets.len().saturating_mul(2));
    }

    /// Returns the time of a moment in nanoseconds. A missing moment, or a moment after the last,
    /// has the time of the last moment before it; a moment before the first has the time of the
    /// first. Returns 0 if the list is empty.
    #[inline]
    #[must_use]
    pub fn at(&self, moment: u64) -> u64 {
        let after = self.groups.partition_point(|group| group.first_moment <= moment);
        let Some(group) = after.checked_sub(1).map(|group| &self.groups[group]) else {
            return self.groups.first().map_or(0, |group| group.base_ns);
        };
        let kept = self.kept(after - 1);
        let moment = moment.min(group.last_moment);
        let index = ((moment - group.first_moment) / self.stride).min(kept.len() as u64 - 1) as usize;
        let [(before, before_ns), (next, next_ns)] = self.around(group, kept, index);
        if moment == before {
            return before_ns;
        }
        let share = u128::from(next_ns - before_ns) * u128::from(moment - before) / u128::from(next - before);
        before_ns + share as u64
    }

    /// Returns the last moment whose time is at most `time_ns` nanoseconds; the first moment if all
    /// are later; 0 if the list is empty.
    #[must_use]
    pub fn moment_at(&self, time_ns: u64) -> u64 {
        let after = self.groups.partition_point(|group| group.base_ns <= time_ns);
        let Some(group) = after.checked_sub(1).map(|group| &self.groups[group]) else {
            return self.groups.first().map_or(0, |group| group.first_moment);
        };
        if group.last_ns <= time_ns {
            return group.last_moment;
        }
        let kept = self.kept(after - 1);
        let later = kept.partition_point(|&offset| group.base_ns + u64::from(offset) <= time_ns);
        self.moment_between(group, kept, later.saturating_sub(1), time_ns)
    }

    /// Returns [`moment_at`](Self::moment_at) for each of `times_ns`. Faster for times that do not
    /// decrease, because each search begins near the result of the previous search.
    // Not inlined: the page's crates that call it are optimized for size.
    #[inline(never)]
    #[must_use]
    pub fn moments_at(&self, times_ns: &[u64]) -> Vec<u64> {
        // The group and the index in it that the previous search found, and how far that search
        // moved.
        let (mut group_index, mut index, mut step) = (usize::MAX, 0, 1);
        let mut moments = Vec::with_capacity(times_ns.len());
        for &time_ns in times_ns {
            let group = self.groups.get(group_index);
            let ends_ns = self.groups.get(group_index.wrapping_add(1)).map_or(u64::MAX, |next| next.base_ns);
            let Some(group) = group.filter(|group| (group.base_ns..ends_ns).contains(&time_ns)) else {
                let after = self.groups.partition_point(|group| group.base_ns <= time_ns);
                (group_index, index, step) = (after.wrapping_sub(1), 0, 1);
                moments.push(self.moment_at(time_ns));
                continue;
            };
            if group.last_ns <= time_ns {
                moments.push(group.last_moment);
                continue;
            }
            let kept = self.kept(group_index);
            let offset = u32::try_from(time_ns - group.base_ns).unwrap_or(u32::MAX);
            if kept[index] > offset {
                index = 0;
            }
            // `low` is not later than the time; the search widens until `high` is later.
            let (mut low, mut width) = (index, step);
            while kept.get(low + width).is_some_and(|&kept| kept <= offset) {
                (low, width) = (low + width, width * 2);
            }
            let high = (low + width).min(kept.len());
            let later = low + kept[low..high].partition_point(|&kept| kept <= offset);
            (step, index) = ((later - 1 - index).max(1), later - 1);
            moments.push(self.moment_between(group, kept, index, time_ns));
        }
        moments
    }

    /// Returns the last moment whose time is at most `time_ns`. It is the kept moment with index
    /// `index` in `group`, or is between that and the next kept moment. `kept` are the group's
    /// offsets.
    fn moment_between(&self, group: &TimeGroup, kept: &[u32], index: usize, time_ns: u64) -> u64 {
        let [(before, before_ns), (next, next_ns)] = self.around(group, kept, index);
        if next - before == 1 {
            return before;
        }
        // `at` rounds down: a moment is later if its share of the time between reaches the time
        // after `time_ns`.
        let reach = u128::from(time_ns - before_ns + 1) * u128::from(next - before) - 1;
        before + (reach / u128::from(next_ns - before_ns)) as u64
    }

    /// Returns the kept times of the group with index `index`, as nanoseconds since the group's
    /// base.
    #[inline]
    fn kept(&self, index: usize) -> &[u32] {
        let end = self.groups.get(index + 1).map_or(self.offsets.len(), |next| next.start);
        &self.offsets[self.groups[index].start..end]
    }

    /// Returns the kept moment with index `index` in `group`, whose offsets are `kept`, and the
    /// next one in the group or its last moment, each with its time.
    #[inline]
    fn around(&self, group: &TimeGroup, kept: &[u32], index: usize) -> [(u64, u64); 2] {
        let at = |index: usize| kept.get(index).map(|&offset| group.base_ns + u64::from(offset));
        let before = group.first_moment + index as u64 * self.stride;
        let next = at(index + 1).map(|next_ns| (before + self.stride, next_ns));
        [(before, at(index).unwrap_or(group.base_ns)), next.unwrap_or((group.last_moment, group.last_ns))]
    }

    /// Returns the distance in moments between two kept moments; 1 if all times are exact.
    #[must_use]
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns the memory that the times occupy, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.offsets.capacity() * size_of::<u32>() + self.groups.capacity() * size_of::<TimeGroup>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn added_times_are_returned() {
        // The list has missing moments, a long pause, and a time that goes back.
        let added = [(3, 7), (4, 9), (5, 9), (9, 20), (10, 30 * SECOND_NS), (11, 30 * SECOND_NS + 1), (12, SECOND_NS)];
        let mut times = MomentTimes::new();
        added.iter().for_each(|&(moment, time_ns)| times.push(moment, time_ns));
        for (moment, time_ns) in added {
            let expected = if moment == 12 { 30 * SECOND_NS + 1 } else { time_ns };
            assert_eq!(times.at(moment), expected, "moment {moment}");
        }
        assert_eq!((times.at(0), times.at(7), times.at(99)), (7, 9, 30 * SECOND_NS + 1));
        let moments = [0, 7, 8, 9, 19, 20, 29 * SECOND_NS, 30 * SECOND_NS, u64::MAX].map(|time| times.moment_at(time));
        assert_eq!(moments, [3, 3, 3, 5, 5, 9, 9, 10, 12]);
        assert_eq!((MomentTimes::new().at(5), MomentTimes::new().moment_at(5)), (0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn interpolated_times_are_between_exact_ones(
            steps in prop::collection::vec((prop_oneof![9 => Just(1u64), 1 => 1..40u64], prop_oneof![
                6 => 0..50u64, 2 => 0..SECOND_NS, 1 => 0..9 * SECOND_NS,
            ]), 1..600),
            limit in 2..400usize,
        ) {
            let (mut exact, mut times) = (MomentTimes::new(), MomentTimes::with_limit(limit));
            let (mut moment, mut time_ns) = (0, 0);
            let mut added = Vec::new();
            for (skip, pause_ns) in steps {
                moment += skip;
                time_ns += pause_ns;
                exact.push(moment, time_ns);
                times.push(moment, time_ns);
                added.push((moment, time_ns));
            }
            let stride = times.stride() as usize;
            prop_assert!(stride > 1 || added.len() < limit);
            for (index, &(moment, time_ns)) in added.iter().enumerate() {
                prop_assert_eq!(exact.at(moment), time_ns);
                let (before, after) = (index.saturating_sub(stride), (index + stride).min(added.len() - 1));
                prop_assert!((added[before].1..=added[after].1).contains(&times.at(moment)), "moment {}", moment);
            }
            let moments = added[0].0 - 1..=moment + 1;
            prop_assert!(moments.clone().map(|moment| times.at(moment)).is_sorted());
            let at: Vec<u64> = moments.clone().step_by(7).map(|moment| times.at(moment)).collect();
            let jumps = at.iter().rev().chain(&at).chain(at.iter().step_by(5));
            let jumps: Vec<u64> = jumps.flat_map(|&time| [time, time / 2]).collect();
            let expected: Vec<u64> = jumps.iter().map(|&time_ns| times.moment_at(time_ns)).collect();
            prop_assert_eq!(times.moments_at(&jumps), expected);
            for moment in moments {
                let time_ns = times.at(moment);
                let found = times.moment_at(time_ns);
                let is_last = found == added[added.len() - 1].0;
                prop_assert!(times.at(found) <= time_ns && (is_last || times.at(found + 1) >= time_ns));
                prop_assert!(found >= moment.min(added[added.len() - 1].0) || times.at(found) == time_ns);
            }
        }
    }
}
