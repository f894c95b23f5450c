//! Reduces a scalar over time to a few points, including its extremes.

use crate::export::steps::Moment;

/// Maximum number of points that are written for one scalar. TensorBoard shows all points up to
/// this number; of more, it shows a random choice.
pub(super) const MAX_POINTS: u64 = 1000;

/// The value that a scalar has from a moment on, until the next point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) moment: Moment,
    pub(super) value: u64,
}

/// Returns the length of an interval: the number of consecutive values of a scalar that are reduced
/// to two points. A scalar of `values` values after the first gets at most [`MAX_POINTS`] points.
pub(super) fn interval(values: u64) -> u64 {
    (values + 1).div_ceil(MAX_POINTS / 2 - 1).max(1)
}

/// Reduces a scalar over time: keeps the first minimum and the first maximum of each interval, a
/// fixed number of consecutive values, and the last value.
#[derive(Debug)]
pub(super) struct DownsampledScalar {
    interval: u64,
    points: Vec<Point>,
    /// Number of values added so far.
    pushed: u64,
    minimum: Option<Point>,
    maximum: Option<Point>,
    last: Option<Point>,
}

impl DownsampledScalar {
    pub(super) fn new(interval: u64) -> Self {
        Self { interval, points: Vec::new(), pushed: 0, minimum: None, maximum: None, last: None }
    }

    /// Adds the scalar's value from `moment` on. Moments must not decrease.
    pub(super) fn push(&mut self, moment: Moment, value: u64) {
        let point = Point { moment, value };
        if self.minimum.is_none_or(|minimum| value < minimum.value) {
            self.minimum = Some(point);
        }
        if self.maximum.is_none_or(|maximum| value > maximum.value) {
            self.maximum = Some(point);
        }
        self.last = Some(point);
        self.pushed += 1;
        if self.pushed.is_multiple_of(self.interval) {
            self.finish_interval();
        }
    }

    /// Adds the minimum and maximum of the values since the last interval to the points, in order
    /// of events.
    fn finish_interval(&mut self) {
        let mut points: Vec<Point> = [self.minimum.take(), self.maximum.take()].into_iter().flatten().collect();
        points.sort_by_key(|point| point.moment.event);
        points.dedup();
        self.points.extend(points);
    }

    /// Ends the last interval and returns all points, in order of events.
    pub(super) fn finish(mut self) -> Vec<Point> {
        self.finish_interval();
        if self.points.last() != self.last.as_ref() {
            self.points.extend(self.last);
        }
        self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_include_the_extremes_of_every_interval_and_the_end() {
        let check = |values: &[u64]| {
            let interval = interval(values.len() as u64 - 1);
            let mut scalar = DownsampledScalar::new(interval);
            for (event, &value) in (0..).zip(values) {
                scalar.push(Moment { event, time_ns: event * 10 }, value);
            }
            let points = scalar.finish();
            assert!(points.len() as u64 <= MAX_POINTS, "{} points", points.len());
            assert!(points.is_sorted_by_key(|point| point.moment.event));
            assert_eq!(points.last().map(|point| point.value), values.last().copied());
            for (number, part) in values.chunks(interval as usize).enumerate() {
                let from = number as u64 * interval;
                let inside = points.iter().filter(|point| (from..from + interval).contains(&point.moment.event));
                let inside: Vec<u64> = inside.map(|point| point.value).collect();
                assert_eq!(inside.iter().min(), part.iter().min());
                assert_eq!(inside.iter().max(), part.iter().max());
            }
        };
        check(&[5]);
        check(&[5, 7, 3]);
        check(&(0..2000).map(|n| n * 7919 % 1009).collect::<Vec<_>>());
        check(&(0..100_000).map(|n| n * 7919 % 100_003).collect::<Vec<_>>());
        check(&vec![1; 1000]);
    }
}
