//! The timeline's horizontal axis: where moments are, and which moments a pixel column shows.

use std::ops::Range;

use vramscope_draw::Rect;
use vramscope_draw::axis_labels::{axis_moment, decimal_step};
use vramscope_insight::history::History;
use vramscope_insight::idle_time::idle_times;
use vramscope_trace::{Count, CounterColumn, Recording, even_part};

use super::geometry::time_origin_ns;
use super::scale::{Scale, TimedMoment};

/// A part of the axis on which positions are evenly spaced, or idle time that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First pixel column, counted from the chart's left edge.
    pub(super) x0: i32,
    /// First pixel column after it.
    pub(super) x1: i32,
    /// Position at its left edge.
    pub(super) from: u64,
    /// Position at its right edge.
    pub(super) to: u64,
    /// Whether it is idle time, shortened to a fixed width.
    pub(super) is_idle: bool,
}

impl Piece {
    /// Returns the distance of a position on the piece from the axis' left edge, in pixels.
    fn x(&self, position: u64) -> f64 {
        let part = position.saturating_sub(self.from) as f64 / (self.to - self.from).max(1) as f64;
        f64::from(self.x0) + part * f64::from(self.x1 - self.x0)
    }
}

/// The timeline's horizontal axis. It converts between moments and pixels.
///
/// Pixel column c (counted from the chart's left edge) shows the moments from `edges()[c]` to
/// `edges()[c + 1]`.
#[derive(Clone, Debug)]
pub struct XAxis {
    scale: Scale,
    /// The chart's left edge in the picture.
    x0: i32,
    width: i32,
    /// At least one, from left to right.
    pub(super) pieces: Vec<Piece>,
    edges: Vec<u64>,
    /// The time at the left edge of each column, and at the right edge of the last one.
    times: Vec<u64>,
    /// Whether the edges come from a history that has the exact times of all events.
    has_exact_edges: bool,
}

/// Returns the time of a moment, in nanoseconds.
fn time_of(recording: &Recording, history: Option<&History>, event: u64) -> u64 {
    match history {
        _ if event >= recording.end_event() => recording.end_ns(),
        Some(history) if event > recording.first_event() => history.time_ns(event),
        _ => recording.start_ns(),
    }
}

impl XAxis {
    /// Creates the axis of a chart at `plot` that shows the positions of `range`. `history` has the
    /// times of all events; without it, the axis must be one of time, and its edges follow later.
    /// `idle_width` is the width in pixels to which idle time is shortened; `None` shows all of it.
    pub(super) fn new(
        scale: Scale,
        plot: Rect,
        range: &Range<u64>,
        recording: &Recording,
        history: Option<&History>,
        idle_width: Option<i32>,
    ) -> Self {
        let width = plot.width().max(1);
        let range = range.start..range.end.max(range.start.saturating_add(1));
        let whole = Piece { x0: 0, x1: width, from: range.start, to: range.end, is_idle: false };
        let (edges, times) = (Vec::new(), Vec::new());
        let mut axis = Self { scale, x0: plot.x0, width, pieces: vec![whole], edges, times, has_exact_edges: false };
        axis.find_edges(recording, history);
        if let (Scale::Time, Some(history), Some(idle_width)) = (&axis.scale, history, idle_width) {
            let idle = idle_times(recording, history, &range, &axis.edges);
            if let Some(pieces) = pieces_without_idle_time(&range, width, &idle, idle_width) {
                axis.pieces = pieces;
                axis.find_edges(recording, Some(history));
            }
        }
        axis
    }

    /// Computes the moments and times at the edges of the pixel columns, as far as the axis and the
    /// history allow it.
    fn find_edges(&mut self, recording: &Recording, history: Option<&History>) {
        let positions: Vec<u64> = self.positions().collect();
        match (&self.scale, history) {
            (Scale::Time, history) => {
                let mut edges = history.map(|history| history.moments_at(&positions)).unwrap_or_default();
                for (edge, &time_ns) in edges.iter_mut().zip(&positions) {
                    if time_ns >= recording.end_ns() {
                        *edge = recording.end_event();
                    } else if time_ns <= recording.start_ns() {
                        *edge = recording.first_event();
                    }
                }
                self.edges = edges;
                self.has_exact_edges = history.is_some_and(History::has_exact_times);
                self.times = positions;
            }
            (scale, history) => {
                let (first, end) = (recording.first_event(), recording.end_event());
                let event = |position| scale.event(position).unwrap_or(first).clamp(first, end);
                self.edges = positions.iter().map(|&position| event(position)).collect();
                self.times = self.edges.iter().map(|&event| time_of(recording, history, event)).collect();
            }
        }
    }

    /// Returns the positions at the left edges of the pixel columns and at the right edge of the
    /// last one.
    fn positions(&self) -> impl Iterator<Item = u64> + '_ {
        let last = self.pieces.last().map(|piece| piece.to);
        let within = self.pieces.iter().flat_map(|piece| {
            let columns = (piece.x1 - piece.x0).max(0) as u64;
            (0..columns).map(move |column| piece.from + even_part(piece.to - piece.from, column, columns))
        });
        within.chain(last)
    }

    /// Sets the moments at the edges of the pixel columns to those of the chart's counters, unless
    /// a history has provided them. `first` is the moment at the left edge.
    pub(super) fn set_edges(&mut self, first: u64, columns: &[CounterColumn]) {
        if self.edges.is_empty() {
            self.edges = std::iter::once(first).chain(columns.iter().map(|column| column.event)).collect();
            // A device without events has columns of moment 0.
            let mut last = first;
            for edge in &mut self.edges {
                last = last.max(*edge);
                *edge = last;
            }
        }
    }

    /// Returns the moments at the boundaries of the chart's pixel columns: one more than there are
    /// columns, never decreasing.
    pub fn edges(&self) -> &[u64] {
        &self.edges
    }

    /// Returns the moments at the boundaries of the chart's pixel columns if they are exactly the
    /// moments at the boundaries' times; `None` if they are unknown or interpolated.
    pub(super) fn exact_edges(&self) -> Option<&[u64]> {
        self.has_exact_edges.then_some(&self.edges)
    }

    /// Returns the times at the boundaries of the chart's pixel columns, in nanoseconds.
    pub fn times(&self) -> &[u64] {
        &self.times
    }

    /// Returns the unit of the axis.
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Returns the positions at the chart's left and right edge.
    pub fn range(&self) -> Range<u64> {
        let first = self.pieces.first().map_or(0, |piece| piece.from);
        first..self.pieces.last().map_or(first, |piece| piece.to)
    }

    /// Returns the range of time that is shown, in nanoseconds.
    pub fn time_range(&self) -> Range<u64> {
        let (first, last) = (self.times.first().copied().unwrap_or(0), self.times.last().copied().unwrap_or(0));
        first..last.max(first)
    }

    /// Returns the length of the idle time that is left out, in nanoseconds.
    pub fn idle_ns(&self) -> u64 {
        self.pieces.iter().filter(|piece| piece.is_idle).map(|piece| piece.to - piece.from).sum()
    }

    /// Returns true if the axis is one of time without anything left out, on which all columns show
    /// equal lengths of time.
    pub(super) fn is_even_time(&self) -> bool {
        self.scale == Scale::Time && self.pieces.len() == 1
    }

    /// Returns the distance of a position from the picture's left edge in pixels; outside of the
    /// chart for a position outside of the range.
    pub(super) fn x_of(&self, position: u64) -> i32 {
        let index = self.pieces.partition_point(|piece| piece.to <= position).min(self.pieces.len() - 1);
        let piece = self.pieces[index];
        let distance = (i128::from(position) - i128::from(piece.from)) as f64;
        let ratio = distance / (piece.to - piece.from).max(1) as f64;
        self.x0 + piece.x0 + (ratio * f64::from(piece.x1 - piece.x0)).floor().clamp(-1e6, 1e6) as i32
    }

    /// Returns the pixel column of a moment, counted from the picture's left edge; outside of the
    /// chart for a moment outside of the range.
    pub fn x(&self, at: TimedMoment) -> i32 {
        self.x_of(self.scale.position(at))
    }

    /// Returns the pixel column of a moment, counted from the picture's left edge; `None` outside
    /// of the range, whose end belongs to the chart's last column.
    pub fn column(&self, at: TimedMoment) -> Option<i32> {
        let (position, range) = (self.scale.position(at), self.range());
        let is_shown = (range.start..=range.end).contains(&position);
        is_shown.then(|| self.x_of(position).min(self.x0 + self.width - 1))
    }

    /// Returns the position at `x` pixels from the picture's left edge; beyond the chart's edges,
    /// the position of the nearest edge.
    pub fn position_at(&self, x: f64) -> u64 {
        let x = (x - f64::from(self.x0)).clamp(0.0, f64::from(self.width));
        let index = self.pieces.partition_point(|piece| f64::from(piece.x1) <= x).min(self.pieces.len() - 1);
        let piece = self.pieces[index];
        let ratio = ((x - f64::from(piece.x0)) / f64::from((piece.x1 - piece.x0).max(1))).clamp(0.0, 1.0);
        piece.from.saturating_add((ratio * (piece.to - piece.from) as f64) as u64).min(piece.to)
    }

    /// Returns the index of the pixel column at `x` pixels from the picture's left edge, or of the
    /// nearest one.
    pub fn column_at(&self, x: f64) -> usize {
        (x.floor() as i32 - self.x0).clamp(0, self.width - 1) as usize
    }

    /// Returns the moment at `x` pixels from the picture's left edge, and its time. On an axis of
    /// time, the moment is that at the left edge of the pixel column.
    pub fn moment_at(&self, x: f64) -> TimedMoment {
        let (position, column) = (self.position_at(x), self.column_at(x));
        let edge = |edges: &[u64]| edges.get(column).copied().unwrap_or(0);
        match self.scale.event(position) {
            None => TimedMoment { event: edge(&self.edges), time_ns: position },
            Some(event) => TimedMoment { event, time_ns: edge(&self.times) },
        }
    }

    /// Returns the labels of the axis, at most about `max_labels`, from left to right: the distance
    /// from the chart's left edge in pixels, and the text.
    pub(super) fn labels(&self, recording: &Recording, max_labels: u64) -> Vec<(f64, String)> {
        let range = self.range();
        let shown: u64 = self.pieces.iter().filter(|piece| !piece.is_idle).map(|piece| piece.to - piece.from).sum();
        match &self.scale {
            Scale::Time => {
                let origin = time_origin_ns(recording);
                let step = decimal_step(shown, max_labels);
                let text = |time_ns: u64| axis_moment(time_ns - origin, step, range.end.saturating_sub(origin));
                self.even_labels(origin, step, text)
            }
            Scale::Events => self.even_labels(0, decimal_step(shown, max_labels), |event| Count(event).to_string()),
            Scale::Steps(steps) => {
                let parts = steps.part_at(range.start)..steps.part_at(range.end.saturating_sub(1)) + 1;
                let stride = decimal_step(parts.len() as u64, max_labels).max(1);
                let labelled = parts.filter_map(|part| Some((part, steps.number(part)?)));
                let labelled =
                    labelled.filter(|&(part, number)| number % stride == 0 && range.contains(&steps.start(part)));
                let labels: Vec<(f64, String)> = labelled
                    .map(|(part, number)| (self.pieces[0].x(steps.start(part)), format!("step {number}")))
                    .collect();
                // Between the starts of two steps, the middle is labelled.
                let number = steps.number(steps.part_at(range.start)).filter(|_| labels.is_empty());
                let middle = number.map(|number| (f64::from(self.width) / 2.0, format!("in step {number}")));
                labels.into_iter().chain(middle).collect()
            }
        }
    }

    /// Returns labels at every multiple of `step` from the position `origin` on, except in idle
    /// time. `text` formats a position.
    fn even_labels(&self, origin: u64, step: u64, text: impl Fn(u64) -> String) -> Vec<(f64, String)> {
        let mut labels = Vec::new();
        for piece in self.pieces.iter().filter(|piece| !piece.is_idle) {
            let first = piece.from.saturating_sub(origin).div_ceil(step);
            let last = piece.to.saturating_sub(origin) / step;
            // The next piece begins where this one ends.
            let positions = (first..=last).map(|index| origin.saturating_add(index.saturating_mul(step)));
            labels.extend(positions.map(|position| (piece.x(position), text(position))));
        }
        labels
    }
}

/// Returns the pieces of an axis of time on which each idle time is `idle_width` pixels wide and
/// all other time is evenly spaced; `None` if nothing is to be left out, or too little room is
/// left.
fn pieces_without_idle_time(
    range: &Range<u64>,
    width: i32,
    idle: &[Range<u64>],
    idle_width: i32,
) -> Option<Vec<Piece>> {
    let idle_pixels = idle_width.saturating_mul(idle.len() as i32);
    let busy_pixels = width.saturating_sub(idle_pixels);
    if idle.is_empty() || busy_pixels < width / 2 {
        return None;
    }
    let idle_ns: u64 = idle.iter().map(|one| one.end - one.start).sum();
    let busy_ns = (range.end - range.start).saturating_sub(idle_ns).max(1);
    let (mut pieces, mut at, mut busy_before) = (Vec::new(), range.start, 0u64);
    let pixels = |ns: u64| (u128::from(ns) * busy_pixels.unsigned_abs() as u128 / u128::from(busy_ns)) as i32;
    let mut add = |from: u64, to: u64, x0: i32, x1: i32, is_idle: bool| {
        if from < to {
            pieces.push(Piece { x0, x1, from, to, is_idle });
        }
    };
    for (index, one) in (0..).zip(idle) {
        let x0 = pixels(busy_before) + idle_width * index;
        busy_before += one.start - at;
        let x1 = pixels(busy_before) + idle_width * index;
        add(at, one.start, x0, x1, false);
        add(one.start, one.end, x1, x1 + idle_width, true);
        at = one.end;
    }
    add(at, range.end, pixels(busy_before) + idle_pixels, width, false);
    // Rounding may leave the last columns to a piece that ends with the range.
    if let Some(last) = pieces.last_mut() {
        last.x1 = width;
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_has_a_fixed_width() {
        let idle = [1000..9000, 9500..9900];
        let pieces = pieces_without_idle_time(&(0..10_000), 200, &idle, 10).expect("there is room");
        let shown: Vec<(i32, i32, u64, bool)> =
            pieces.iter().map(|piece| (piece.x0, piece.x1, piece.from, piece.is_idle)).collect();
        let expected = [(0, 112, 0, false), (112, 122, 1000, true), (122, 178, 9000, false), (178, 188, 9500, true)];
        assert_eq!(shown[..4], expected);
        assert_eq!((shown[4], pieces[4].to), ((188, 200, 9900, false), 10_000));
        assert_eq!(pieces_without_idle_time(&(0..10_000), 200, &[], 10), None);
        assert_eq!(pieces_without_idle_time(&(0..10_000), 30, &idle, 10), None, "too little room");
        let at_end = pieces_without_idle_time(&(0..9900), 200, &idle, 10).expect("there is room");
        assert_eq!(at_end.last().map(|piece| (piece.x1, piece.is_idle)), Some((200, true)));
    }
}
