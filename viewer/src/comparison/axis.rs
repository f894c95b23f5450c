//! The horizontal axis that both sides of a comparison share: steps, events or time.

use vramscope_draw::axis_labels::{axis_moment, decimal_step};
use vramscope_draw::picture::{TEXT, px};
use vramscope_draw::{Axis, Rect, Typesetter};
use vramscope_insight::comparison::STEP_LENGTH;
use vramscope_trace::{Count, DurationNs};

/// Minimum distance between two labels of the axis, in units (pixels at scale 1).
const LABEL_DISTANCE: f32 = 90.0;

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
