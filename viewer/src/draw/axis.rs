//! The axes of charts: pixel columns, time in decimal steps, bytes in powers of two.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::units::binary_step;
#[cfg(not(target_arch = "wasm32"))]
use crate::units::{axis_moment, decimal_step};

/// A chart axis: a range of times or bytes along a line of pixels, with evenly spaced labels.
///
/// The plotters crate draws it. plotters gets every value as its distance from the start of the
/// range, because Unix times in nanoseconds do not fit an `f64` exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// First value of the range, in nanoseconds or bytes.
    from: u64,
    /// Last value of the range.
    to: u64,
    /// Distance between two labels, in nanoseconds or bytes.
    step: u64,
    /// The value that is labelled 0.
    origin: u64,
}

impl Axis {
    /// Creates an axis of the times from `from_ns` to `to_ns`, with at most `max_labels` labels;
    /// each shows the time since `origin_ns`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn time(from_ns: u64, to_ns: u64, origin_ns: u64, max_labels: u64) -> Self {
        Self { from: from_ns, to: to_ns, step: decimal_step(to_ns - from_ns, max_labels), origin: origin_ns }
    }

    /// Creates an axis from 0 to `top` bytes with at most `max_labels` labels above 0.
    pub(crate) fn bytes(top: u64, max_labels: u64) -> Self {
        Self { from: 0, to: top.max(1), step: binary_step(top, max_labels), origin: 0 }
    }

    /// Returns the label of a time axis at `distance` nanoseconds from its start: the time since
    /// the moment labelled 0 (`origin`), with the unit and decimals that the axis needs.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn label(&self, distance: f64) -> String {
        let value = self.from.saturating_add(distance.round() as u64).saturating_sub(self.origin);
        axis_moment(value, self.step, self.to.saturating_sub(self.origin))
    }

    /// Returns the distances of the labels from the start of the range, in nanoseconds or bytes.
    /// Labelled values are multiples of the field `step`, counted from `origin`, the value labelled
    /// 0.
    fn labelled_distances(&self) -> Vec<f64> {
        let first = self.from.saturating_sub(self.origin).div_ceil(self.step);
        let last = self.to.saturating_sub(self.origin) / self.step;
        (first..=last).map(|index| (self.origin + index * self.step - self.from) as f64).collect()
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let ratio = value / (self.to - self.from) as f64;
        let length = f64::from(limit.1 - limit.0);
        // `limit.1` is the last column, not the first one beyond it.
        let length = if length > 0.0 { length + 1.0 } else { length };
        let offset = ratio * length;
        // Rounds towards smaller values on both axes: a pixel column is exactly one time slice.
        limit.0 + if length < 0.0 { offset.ceil() } else { offset.floor() } as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.labelled_distances()
    }

    fn range(&self) -> Range<f64> {
        0.0..(self.to - self.from) as f64
    }
}

/// A chart axis whose values are pixel columns, with labels at given columns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnAxis {
    /// Number of columns, at least 1.
    width: i32,
    /// Distances of the labels from the chart's left edge, in columns.
    labels: Vec<f64>,
}

impl ColumnAxis {
    /// Creates the axis of a chart with `width` pixel columns; `labels` are the distances of the
    /// labels from its left edge, in columns.
    pub(crate) fn new(width: i32, labels: impl Iterator<Item = f64>) -> Self {
        Self { width: width.max(1), labels: labels.collect() }
    }
}

impl Ranged for ColumnAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // `limit.1` is the last column, not the first one beyond it.
        limit.0 + (value / f64::from(self.width) * f64::from(limit.1 - limit.0 + 1)).floor() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.labels.clone()
    }

    fn range(&self) -> Range<f64> {
        0.0..f64::from(self.width)
    }
}
