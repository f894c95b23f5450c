//! The alignment of two recordings in time: by steps, by events or by time.

use vramscope_trace::even_part;

use crate::steps::Step;

/// Length of a training step, in positions of an [`Alignment`] by steps.
pub const STEP_LENGTH: i64 = 1 << 20;
/// Number of equal parts into which an alignment by events divides a recording; within a part, time
/// is interpolated between its first and last event.
const EVENT_PARTS: u64 = 512;

/// A mapping between axis positions and the times of one side: pairs of position and time in
/// nanoseconds, ascending. Between two pairs, both are interpolated linearly.
///
/// A position counts nanoseconds, events or parts of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment(Vec<(i64, u64)>);

impl Alignment {
    /// Creates the alignment by time of a recording that begins and ends at the given times;
    /// `origin_ns` is at position 0.
    #[must_use]
    pub fn by_time((start_ns, end_ns): (u64, u64), origin_ns: u64) -> Self {
        let position = |time_ns: u64| time_ns as i64 - origin_ns as i64;
        let end_ns = end_ns.max(start_ns.saturating_add(1));
        Self(vec![(position(start_ns), start_ns), (position(end_ns), end_ns)])
    }

    /// Creates the alignment by events, from event number `events.0` at position 0 to `events.1`.
    /// `time_ns` returns the time of an event number.
    #[must_use]
    pub fn by_events(events: (u64, u64), time_ns: &dyn Fn(u64) -> u64) -> Self {
        let count = events.1.saturating_sub(events.0).max(1);
        let at = |part: u64| even_part(count, part, EVENT_PARTS);
        Self((0..=EVENT_PARTS).map(|part| (at(part) as i64, time_ns(events.0 + at(part)))).collect())
    }

    /// Creates the alignment by training steps of a recording that begins and ends at the given
    /// times. The time before the first step and the time after the last one are each as long as a
    /// step; the time between two steps belongs to the first of them.
    #[must_use]
    pub fn by_steps(steps: &[Step], (start_ns, end_ns): (u64, u64)) -> Self {
        let mut points: Vec<(i64, u64)> = Vec::with_capacity(steps.len() + 3);
        let position = |number: u64| (number as i64).saturating_mul(STEP_LENGTH);
        if let Some((first, last)) = steps.first().zip(steps.last()) {
            if start_ns < first.from_ns {
                points.push((position(first.number) - STEP_LENGTH, start_ns));
            }
            points.extend(steps.iter().map(|step| (position(step.number), step.from_ns)));
            points.push((position(last.number) + STEP_LENGTH, last.to_ns));
            if last.to_ns < end_ns {
                points.push((position(last.number) + 2 * STEP_LENGTH, end_ns));
            }
        }
        Self(points)
    }

    /// Returns the first and the last position; (0, 0) for an alignment by steps without a step.
    #[must_use]
    pub fn range(&self) -> (i64, i64) {
        let position = |point: Option<&(i64, u64)>| point.map_or(0, |(position, _)| *position);
        (position(self.0.first()), position(self.0.last()))
    }

    /// Returns the time in nanoseconds at a position, which is clamped to the alignment's range.
    #[must_use]
    pub fn time_ns(&self, position: i64) -> u64 {
        let after = self.0.partition_point(|(known, _)| *known <= position);
        let Some(&(from, from_ns)) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return self.0.first().map_or(0, |(_, time_ns)| *time_ns);
        };
        let Some(&(to, to_ns)) = self.0.get(after) else { return from_ns };
        let part = (position - from) as f64 / (to - from).max(1) as f64;
        from_ns + (to_ns.saturating_sub(from_ns) as f64 * part) as u64
    }

    /// Returns the position of a time in nanoseconds, which is clamped to the recording's times.
    #[must_use]
    pub fn position(&self, time_ns: u64) -> i64 {
        let after = self.0.partition_point(|(_, known)| *known <= time_ns);
        let Some(&(from, from_ns)) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return self.range().0;
        };
        let Some(&(to, to_ns)) = self.0.get(after) else { return from };
        let part = (time_ns - from_ns) as f64 / to_ns.saturating_sub(from_ns).max(1) as f64;
        from + ((to - from) as f64 * part) as i64
    }

    /// Divides the positions from `from` to `to` into `width` equal parts, and returns the times in
    /// nanoseconds at the `width + 1` edges.
    #[must_use]
    pub fn edges(&self, from: i64, to: i64, width: usize) -> Vec<u64> {
        let length = (to - from) as f64;
        (0..=width).map(|index| self.time_ns(from + (length * index as f64 / width as f64) as i64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_equal_numbers_have_equal_positions() {
        let steps = |first: u64, times: &[u64]| -> Vec<Step> {
            let step = |(number, pair): (u64, &[u64])| Step {
                number,
                from_event: pair[0],
                to_event: pair[1],
                from_ns: pair[0],
                to_ns: pair[1],
            };
            (first..).zip(times.windows(2)).map(step).collect()
        };
        let a = Alignment::by_steps(&steps(1, &[100, 200, 300, 500]), (0, 900));
        let b = Alignment::by_steps(&steps(2, &[50, 1050, 2050]), (50, 2050));
        assert_eq!(a.range(), (0, 5 * STEP_LENGTH));
        assert_eq!(b.range(), (2 * STEP_LENGTH, 4 * STEP_LENGTH));
        // The middle of step 3.
        assert_eq!(a.position(400), 3 * STEP_LENGTH + STEP_LENGTH / 2);
        assert_eq!(b.position(1550), a.position(400));
        assert_eq!((a.time_ns(a.position(400)), b.time_ns(a.position(400))), (400, 1550));
        assert_eq!((a.time_ns(-9), a.time_ns(i64::MAX)), (0, 900));
        assert_eq!(b.edges(2 * STEP_LENGTH, 4 * STEP_LENGTH, 4), [50, 550, 1050, 1550, 2050]);
    }

    #[test]
    fn event_positions_count_from_the_start_and_time_positions_from_the_origin() {
        let by_events = Alignment::by_events((10, 1034), &|event| event * event);
        assert_eq!((by_events.range(), by_events.position(522 * 522)), ((0, 1024), 512));
        let by_time = Alignment::by_time((1000, 3000), 1500);
        assert_eq!((by_time.range(), by_time.position(2000), by_time.time_ns(500)), ((-500, 1500), 500, 2000));
    }
}
