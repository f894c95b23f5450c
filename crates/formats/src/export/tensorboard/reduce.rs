//! A scalar over time in few points, of which none that stands out is missing.

use crate::export::follow::Moment;

/// Points of a scalar at most. TensorBoard shows all of so many, and of more a random choice.
pub(super) const POINTS: u64 = 1000;

/// A scalar's value from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) moment: Moment,
    pub(super) value: u64,
}

/// How many values make a stretch, of `values` in all, and one before them: a stretch becomes two points, and the last value another.
pub(super) fn stretch(values: u64) -> u64 {
    (values + 1).div_ceil(POINTS / 2 - 1).max(1)
}

/// A scalar over time: the first least and the first greatest value of each stretch, and the last of all.
#[derive(Debug)]
pub(super) struct Reduced {
    stretch: u64,
    points: Vec<Point>,
    taken: u64,
    least: Option<Point>,
    greatest: Option<Point>,
    last: Option<Point>,
}

impl Reduced {
    pub(super) fn new(stretch: u64) -> Self {
        Self { stretch, points: Vec::new(), taken: 0, least: None, greatest: None, last: None }
    }

    pub(super) fn take(&mut self, moment: Moment, value: u64) {
        let point = Point { moment, value };
        if self.least.is_none_or(|least| value < least.value) {
            self.least = Some(point);
        }
        if self.greatest.is_none_or(|greatest| value > greatest.value) {
            self.greatest = Some(point);
        }
        self.last = Some(point);
        self.taken += 1;
        if self.taken.is_multiple_of(self.stretch) {
            self.close();
        }
    }

    fn close(&mut self) {
        let mut points: Vec<Point> = [self.least.take(), self.greatest.take()].into_iter().flatten().collect();
        points.sort_by_key(|point| point.moment.event);
        points.dedup();
        self.points.extend(points);
    }

    pub(super) fn finish(mut self) -> Vec<Point> {
        self.close();
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
    fn few_points_hold_every_stretchs_extremes_and_the_end() {
        let check = |values: &[u64]| {
            let stretch = stretch(values.len() as u64 - 1);
            let mut reduced = Reduced::new(stretch);
            for (event, &value) in (0..).zip(values) {
                reduced.take(Moment { event, time_ns: event * 10 }, value);
            }
            let points = reduced.finish();
            assert!(points.len() as u64 <= POINTS, "{} points", points.len());
            assert!(points.is_sorted_by_key(|point| point.moment.event));
            assert_eq!(points.last().map(|point| point.value), values.last().copied());
            for (number, part) in values.chunks(stretch as usize).enumerate() {
                let from = number as u64 * stretch;
                let inside = points.iter().filter(|point| (from..from + stretch).contains(&point.moment.event));
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
