//! Ranks that differ from comparable ranks.
//!
//! Ranks of one pipeline stage do equal work, so each of their metrics should be about equal. The
//! distance of a rank is how far its metric is from the median of its group, in units of the
//! group's spread: 1.4826 times the median absolute deviation, which equals the standard deviation
//! of normally distributed values and which no single rank can change. A least spread keeps small
//! differences of nearly equal ranks from counting.
//!
//! A rank is marked once a distance has been at least [`MIN_DISTANCE`] for [`MIN_TICKS`] ticks in a
//! row, and ranked by the mean distance of the last [`MAX_TICKS`] ticks.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The least distance at which a rank counts as different. Of normally distributed values, one in
/// 500 million is that far off.
const MIN_DISTANCE: f64 = 6.0;
/// Number of ticks for which a rank must differ before it is marked: at ten ticks a second, 0.3 s.
const MIN_TICKS: usize = 3;
/// Number of ticks over which distances are averaged: 1 s.
const MAX_TICKS: usize = 10;
/// The largest distance that counts; larger ones are set to it.
const MAX_DISTANCE: f64 = 1e6;
/// Minimum number of ranks of a group, so that one rank cannot move its median.
pub(super) const MIN_GROUP: usize = 4;
/// Factor from the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATION_FACTOR: f64 = 1.4826;

/// A metric that is compared between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MarkedMetric {
    /// Peak of the allocated bytes in the last seconds.
    Allocated,
    /// Peak of the reserved bytes in the last seconds.
    Reserved,
    /// Peak of the free bytes outside of the largest free block in the last seconds.
    FragmentedBytes,
    /// Growth of allocated bytes, in bytes a second.
    Growth,
    /// Steps behind the median of the group.
    StepsBehind,
    /// Seconds since the last summary.
    Silence,
}

impl MarkedMetric {
    /// All metrics, in the order of [`Values`].
    pub(super) const ALL: [Self; 6] =
        [Self::Allocated, Self::Reserved, Self::FragmentedBytes, Self::Growth, Self::StepsBehind, Self::Silence];

    /// Returns the minimum spread that is assumed for a group with the median `median`.
    fn least_spread(self, median: f64) -> f64 {
        /// Number of bytes in a MiB.
        const MIB: f64 = (1 << 20) as f64;
        match self {
            // 2% and 16 MiB: with this spread, equal ranks in recordings of data-parallel runs stay
            // below a distance of 6.
            Self::Allocated | Self::Reserved | Self::FragmentedBytes => (0.02 * median.abs()).max(16.0 * MIB),
            Self::Growth => MIB,
            Self::StepsBehind => 0.5,
            Self::Silence => 0.5,
        }
    }

    /// Returns true if only values above the median count: a rank with less of it has no problem.
    fn is_one_sided(self) -> bool {
        matches!(self, Self::FragmentedBytes | Self::StepsBehind | Self::Silence)
    }
}

/// A rank's value of each metric, in the order of [`MarkedMetric::ALL`]. Unknown values are `None`.
pub(super) type Values = [Option<f64>; MarkedMetric::ALL.len()];

/// The metric in which a rank differs most from its group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// The metric.
    pub metric: MarkedMetric,
    /// The rank's value now.
    pub value: f64,
    /// The median of its group now.
    pub median: f64,
    /// The mean distance of the last second, in units of the group's spread; negative below the
    /// median.
    pub distance: f64,
}

/// The distances of one rank in the last ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct RankDistances {
    ticks: [VecDeque<f64>; MarkedMetric::ALL.len()],
}

impl RankDistances {
    /// Adds the distance of this tick for the metric with the index `metric` in
    /// [`MarkedMetric::ALL`]; `None` if the metric or the group's median is unknown.
    fn add(&mut self, metric: usize, distance: Option<f64>) {
        let ticks = &mut self.ticks[metric];
        match distance {
            Some(distance) => {
                if ticks.len() == MAX_TICKS {
                    ticks.pop_front();
                }
                ticks.push_back(distance.clamp(-MAX_DISTANCE, MAX_DISTANCE));
            }
            None => ticks.clear(),
        }
    }

    /// Returns the metric in which the rank differs most, among the metrics in which it has
    /// differed for [`MIN_TICKS`] ticks.
    pub(super) fn outlier(&self, values: &Values, medians: &Values) -> Option<Outlier> {
        let mut most: Option<Outlier> = None;
        for (index, metric) in MarkedMetric::ALL.into_iter().enumerate() {
            let ticks = &self.ticks[index];
            let newest = ticks.iter().rev().take(MIN_TICKS);
            let is_far = ticks.len() >= MIN_TICKS && newest.clone().all(|distance| distance.abs() >= MIN_DISTANCE);
            let (Some(value), Some(median), true) = (values[index], medians[index], is_far) else { continue };
            let distance = ticks.iter().sum::<f64>() / ticks.len() as f64;
            if most.is_none_or(|most| distance.abs() > most.distance.abs()) {
                most = Some(Outlier { metric, value, median, distance });
            }
        }
        most
    }
}

/// Compares the ranks of one group with each other, and adds the distances of this tick. Returns
/// the group's medians.
pub(super) fn compare(ranks: &mut [(Values, &mut RankDistances)]) -> Values {
    let mut medians = Values::default();
    for (index, metric) in MarkedMetric::ALL.into_iter().enumerate() {
        let mut known: Vec<f64> = ranks.iter().filter_map(|(values, _)| values[index]).collect();
        let median = if known.len() < MIN_GROUP { None } else { median(&mut known) };
        let spread = median.and_then(|center| {
            let mut deviations: Vec<f64> = known.iter().map(|value| (value - center).abs()).collect();
            Some((DEVIATION_FACTOR * self::median(&mut deviations)?).max(metric.least_spread(center)))
        });
        medians[index] = median;
        for (values, distances) in ranks.iter_mut() {
            let distance = values[index].zip(median).zip(spread).map(|((value, median), spread)| {
                let distance = (value - median) / spread;
                if metric.is_one_sided() { distance.max(0.0) } else { distance }
            });
            distances.add(index, distance);
        }
    }
    medians
}

/// Returns the median of `values`, or of an even number of them the mean of the middle two; `None`
/// if there are none. Reorders them.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let is_odd = values.len() % 2 == 1;
    let middle = values.len() / 2;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(if is_odd { upper } else { f64::midpoint(lower, upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;

    /// Compares ranks with these allocated bytes for some ticks; returns the marked ranks with
    /// their distances.
    fn marked(allocated: &[f64], ticks: usize) -> Vec<(usize, f64)> {
        let values: Vec<Values> = allocated
            .iter()
            .map(|&allocated| {
                let mut values = Values::default();
                values[0] = Some(allocated);
                values
            })
            .collect();
        let mut distances = vec![RankDistances::default(); values.len()];
        let mut medians = Values::default();
        for _ in 0..ticks {
            medians = compare(&mut values.iter().copied().zip(&mut distances).collect::<Vec<_>>());
        }
        let outliers = distances.iter().zip(&values).map(|(distances, values)| distances.outlier(values, &medians));
        outliers.enumerate().filter_map(|(rank, outlier)| Some((rank, outlier?.distance))).collect()
    }

    #[test]
    fn rank_far_from_the_median_is_marked_after_three_ticks() {
        let mut allocated = vec![10.0 * GIB; 64];
        allocated[7] = 14.0 * GIB;
        assert_eq!(marked(&allocated, 2), []);
        let [(rank, distance)] = marked(&allocated, 3)[..] else { panic!("one rank differs") };
        // 4 GiB in units of 2% of 10 GiB.
        assert_eq!((rank, distance.round()), (7, 20.0));
        allocated[9] = 6.0 * GIB;
        assert_eq!(marked(&allocated, 3).len(), 2);
    }

    #[test]
    fn spread_of_the_group_decides_what_is_far() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut allocated: Vec<f64> = (0..256).map(|_| (10.0 + 4.0 * random.f64()) * GIB).collect();
        assert_eq!(marked(&allocated, 10), []);
        allocated[0] = 14.5 * GIB;
        assert_eq!(marked(&allocated, 10), []);
        allocated[0] = 40.0 * GIB;
        assert_eq!(marked(&allocated, 10).len(), 1);
        // Ranks that differ only a little are not marked.
        let mut equal = vec![GIB; 8];
        equal[3] = 1.05 * GIB;
        assert_eq!(marked(&equal, 10), []);
    }

    #[test]
    fn small_groups_have_no_outliers() {
        assert_eq!(marked(&[GIB, GIB, 50.0 * GIB], 10), []);
        assert_eq!(marked(&[GIB, GIB, GIB, 50.0 * GIB], 10).len(), 1);
        assert_eq!(marked(&[], 3), []);
    }

    #[test]
    fn median_is_in_the_middle() {
        let check = |values: &[f64], expected: Option<f64>| assert_eq!(median(&mut values.to_vec()), expected);
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[4.0, 1.0], Some(2.5));
        check(&[9.0, 1.0, 4.0], Some(4.0));
        check(&[9.0, 1.0, 4.0, 5.0], Some(4.5));
    }
}
