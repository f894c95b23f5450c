//! The axes of charts: values along a line of pixels, and their labels.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::axis_labels::{axis_size, binary_step};
use crate::bitmap::Rect;

/// A chart axis: values from 0 up along a line of pixels, some of them with labels.
///
/// The plotters crate draws it. Values are distances from the axis's start, because byte counts and
/// times of recordings do not all fit an `f64` exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Value at the axis's end.
    length: f64,
    /// Labelled values with their texts. A value with an empty text has a tick only.
    pub labels: Vec<(f64, String)>,
    /// Whether a grid line begins at every labelled value.
    pub has_grid: bool,
}

impl Axis {
    /// Creates an axis with the value `length`, which must exceed 0, at its end, and grid lines at
    /// the labelled values.
    pub fn new(length: f64, labels: Vec<(f64, String)>) -> Self {
        Self { length, labels, has_grid: true }
    }

    /// Creates an axis of the byte counts `shown`, with at most about `max_labels` labels, at
    /// multiples of a power of two.
    pub fn bytes(shown: &Range<u64>, max_labels: u64) -> Self {
        let length = shown.end.saturating_sub(shown.start).max(1);
        let step = binary_step(length, max_labels);
        let bytes = (shown.start.div_ceil(step)..=shown.end / step).map(|index| index * step);
        Self::new(length as f64, bytes.map(|bytes| ((bytes - shown.start) as f64, axis_size(bytes))).collect())
    }

    /// Returns the axis without grid lines.
    pub fn without_grid(self) -> Self {
        Self { has_grid: false, ..self }
    }

    /// Returns the axis without the texts that do not fit: texts that would end more than
    /// `available` pixels from the axis's start, or begin less than `distance` pixels after the
    /// text before. Values must be pixels and ascend. `text_width` returns the width of a text in
    /// pixels.
    pub fn with_fitting_texts(mut self, (available, distance): (i32, i32), text_width: impl Fn(&str) -> f32) -> Self {
        let mut end = f64::NEG_INFINITY;
        for (x, text) in self.labels.iter_mut().filter(|(_, text)| !text.is_empty()) {
            let half = f64::from(text_width(text)) / 2.0;
            if *x + half > f64::from(available) || *x - half < end + f64::from(distance) {
                text.clear();
            } else {
                end = *x + half;
            }
        }
        self
    }

    /// Returns the text of a labelled value; empty for any other value.
    pub fn text(&self, value: f64) -> String {
        let found = self.labels.iter().find(|(labelled, _)| *labelled == value);
        found.map_or_else(String::new, |(_, text)| text.clone())
    }

    /// Returns the pixel row of a value on a vertical axis beside the chart `plot`; the highest row
    /// for a value beyond the axis's end.
    pub fn row(&self, plot: Rect, value: f64) -> i32 {
        self.pixel(value.min(self.length), (plot.y1 - 1, plot.y0))
    }

    /// Returns the pixel of a value on an axis from the pixel `first` to the pixel `last`.
    fn pixel(&self, value: f64, (first, last): (i32, i32)) -> i32 {
        // On a horizontal axis, the end of the values is right of the last pixel: every pixel
        // column has an equal part of the values. Both axes round towards smaller values.
        let pixels = if last > first { last - first + 1 } else { last - first };
        first.saturating_add((value / self.length * f64::from(pixels)) as i32)
    }
}

impl Ranged for &Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.pixel(*value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.labels.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.length
    }
}
