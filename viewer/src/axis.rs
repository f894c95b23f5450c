//! The timeline's two axes: time in round decimal steps, bytes in powers of two.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::units::{axis_moment, binary_step, decimal_step};

/// A range of whole numbers on a line of pixels, with the values that get a label.
///
/// Positions are given as distances from its beginning: nanoseconds since 1970 have more digits than an `f64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    from: u64,
    to: u64,
    /// The distance between labels.
    step: u64,
    /// What the labels count from.
    origin: u64,
}

impl Axis {
    /// The time from `from_ns` to the later `to_ns`, labelled from `origin_ns` on with at most `most` labels.
    pub(crate) fn time(from_ns: u64, to_ns: u64, origin_ns: u64, most: u64) -> Self {
        Self { from: from_ns, to: to_ns, step: decimal_step(to_ns - from_ns, most), origin: origin_ns }
    }

    /// Bytes up to `top`, with at most `most` labels above 0.
    pub(crate) fn bytes(top: u64, most: u64) -> Self {
        Self { from: 0, to: top.max(1), step: binary_step(top, most), origin: 0 }
    }

    /// What stands at a distance from the beginning of a time axis.
    pub(crate) fn label(&self, distance: f64) -> String {
        let value = self.from.saturating_add(distance.round() as u64).saturating_sub(self.origin);
        axis_moment(value, self.step, self.to.saturating_sub(self.origin))
    }

    fn values(&self) -> Vec<f64> {
        let first = self.from.saturating_sub(self.origin).div_ceil(self.step);
        let last = self.to.saturating_sub(self.origin) / self.step;
        (first..=last).map(|index| (self.origin + index * self.step - self.from) as f64).collect()
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = value / (self.to - self.from) as f64;
        let length = f64::from(limit.1 - limit.0);
        let at = share * length;
        // Downwards on both axes, so that a pixel column belongs to one slice of time exactly.
        limit.0 + if length < 0.0 { at.ceil() } else { at.floor() } as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.values()
    }

    fn range(&self) -> Range<f64> {
        0.0..(self.to - self.from) as f64
    }
}
