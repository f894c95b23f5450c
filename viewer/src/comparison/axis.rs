//! The horizontal axis that both sides of a comparison share: steps, events or time.

use vramscope_draw::axis::Axis;
use vramscope_draw::axis_labels::{axis_moment, decimal_step};
use vramscope_draw::bitmap::Rect;
use vramscope_draw::picture::{TEXT, px};
use vramscope_draw::text::Typesetter;
use vramscope_insight::steps::Step;
use vramscope_trace::{Count, DurationNs, even_part};

/// Minimum distance between two labels of the axis, in units (pixels at scale 1).
const LABEL_DISTANCE: f32 = 90.0;
/// Length of a training step on the axis, in axis positions.
const STEP_LENGTH: i64 = 1 << 20;
/// Number of equal parts into which an alignment by events divides a recording; within a part, time
/// is interpolated between its first and last event.
const EVENT_PARTS: u64 = 512;

/// A text of the legend or a title, and the pixel of the picture at which it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) text: String,
}

/// The unit of a comparison's horizontal axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AxisUnit {
    /// Training steps by their numbers; all steps have one length.
    Steps,
    /// Number of events since the start of each recording.
    Events,
    /// Nanoseconds since each side's origin, the time at position 0.
    #[default]
    Time,
}

impl AxisUnit {
    /// All units, in the order of the menu.
    pub const ALL: [Self; 3] = [Self::Steps, Self::Events, Self::Time];

    /// Returns the unit's name in the menu, such as `steps`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Events => "events",
            Self::Time => "time",
        }
    }
}

/// A mapping between axis positions and the times of one side: pairs of position and time in
/// nanoseconds, ascending. Between two pairs, both are interpolated linearly.
///
/// A position counts nanoseconds, events or parts of a step, as the [`AxisUnit`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment(Vec<(i64, u64)>);

impl Alignment {
    /// Creates the alignment by time of a recording that begins and ends at the given times;
    /// `origin_ns` is at position 0.
    pub fn by_time((start_ns, end_ns): (u64, u64), origin_ns: u64) -> Self {
        let position = |time_ns: u64| time_ns as i64 - origin_ns as i64;
        let end_ns = end_ns.max(start_ns.saturating_add(1));
        Self(vec![(position(start_ns), start_ns), (position(end_ns), end_ns)])
    }

    /// Creates the alignment by events, from event number `events.0` at position 0 to `events.1`.
    /// `time_ns` returns the time of an event number.
    pub fn by_events(events: (u64, u64), time_ns: &dyn Fn(u64) -> u64) -> Self {
        let count = events.1.saturating_sub(events.0).max(1);
        let at = |part: u64| even_part(count, part, EVENT_PARTS);
        Self((0..=EVENT_PARTS).map(|part| (at(part) as i64, time_ns(events.0 + at(part)))).collect())
    }

    /// Creates the alignment by training steps of a recording that begins and ends at the given
    /// times. The time before the first step and the time after the last one are each as long as a
    /// step; the time between two steps belongs to the first of them.
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
    pub(super) fn range(&self) -> (i64, i64) {
        let position = |point: Option<&(i64, u64)>| point.map_or(0, |(position, _)| *position);
        (position(self.0.first()), position(self.0.last()))
    }

    /// Returns the time in nanoseconds at a position, which is clamped to the alignment's range.
    pub(super) fn time_ns(&self, position: i64) -> u64 {
        let after = self.0.partition_point(|(known, _)| *known <= position);
        let Some(&(from, from_ns)) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return self.0.first().map_or(0, |(_, time_ns)| *time_ns);
        };
        let Some(&(to, to_ns)) = self.0.get(after) else { return from_ns };
        let part = (position - from) as f64 / (to - from).max(1) as f64;
        from_ns + (to_ns.saturating_sub(from_ns) as f64 * part) as u64
    }

    /// Returns the position of a time in nanoseconds, which is clamped to the recording's times.
    pub(super) fn position(&self, time_ns: u64) -> i64 {
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
    pub(super) fn edges(&self, from: i64, to: i64, width: usize) -> Vec<u64> {
        let length = (to - from) as f64;
        (0..=width).map(|index| self.time_ns(from + (length * index as f64 / width as f64) as i64)).collect()
    }
}

/// The horizontal axis of the chart: its first and last position, its unit, and the chart's pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedAxis {
    pub(super) unit: AxisUnit,
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) plot: Rect,
}

impl SharedAxis {
    /// Returns the pixel column that shows a position; positions off the axis map to its ends.
    pub(super) fn x(&self, position: i64) -> i32 {
        let ratio = (position - self.from) as f64 / (self.to - self.from).max(1) as f64;
        self.plot.x0 + (ratio.clamp(0.0, 1.0) * f64::from(self.plot.width())).round() as i32
    }

    /// Returns the axis value at pixel column `x` as text: `step 3`, `2 s after the start`.
    pub(super) fn text_at(&self, x: i32) -> String {
        let part = f64::from(x - self.plot.x0) / f64::from(self.plot.width());
        let position = self.from + ((self.to - self.from) as f64 * part) as i64;
        match self.unit {
            AxisUnit::Steps => format!("step {}", position.div_euclid(STEP_LENGTH)),
            AxisUnit::Events => format!("event {} after the start", Count(position.unsigned_abs())),
            AxisUnit::Time => {
                let duration = DurationNs(position.unsigned_abs());
                format!("{duration} {}", if position < 0 { "before" } else { "after the start" })
            }
        }
    }

    /// Returns the labels of the axis in pixel columns; `scale` is pixels per unit of length.
    pub(super) fn labels(&self, scale: f32, typesetter: &Typesetter) -> Axis {
        let most = (self.plot.width() / px(LABEL_DISTANCE, scale).max(1)).max(1) as u64;
        let length = (self.to - self.from).unsigned_abs();
        let step = match self.unit {
            AxisUnit::Steps => decimal_step(length.div_ceil(STEP_LENGTH as u64), most) as i64 * STEP_LENGTH,
            AxisUnit::Events | AxisUnit::Time => decimal_step(length, most) as i64,
        };
        let furthest = self.from.unsigned_abs().max(self.to.unsigned_abs());
        let first = self.from.div_euclid(step) + i64::from(self.from.rem_euclid(step) != 0);
        let label = |position: i64| {
            let text = match self.unit {
                AxisUnit::Steps => format!("step {}", position / STEP_LENGTH),
                AxisUnit::Events => Count(position.unsigned_abs()).to_string(),
                AxisUnit::Time => {
                    let sign = if position < 0 { "−" } else { "" };
                    format!("{sign}{}", axis_moment(position.unsigned_abs(), step.unsigned_abs(), furthest))
                }
            };
            // In the middle of the pixel column, so that rounding cannot move it.
            (f64::from(self.x(position).min(self.plot.x1 - 1) - self.plot.x0) + 0.5, text)
        };
        let labels = (first..=self.to.div_euclid(step)).map(|index| label(index * step)).collect();
        Axis::new(f64::from(self.plot.width()), labels)
            .without_grid()
            .with_fitting_texts((self.plot.width() + px(20.0, scale), 0), |text| typesetter.width(text, TEXT * scale))
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
