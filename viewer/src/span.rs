//! The range of positions (times, events or steps) that the timeline shows.

use std::ops::Range;

/// Shortest range of time that the timeline shows, in nanoseconds; zooming in stops there.
const MIN_LENGTH_NS: u64 = 100;

/// The range of a recording that the timeline shows, in the unit of its axis: time in nanoseconds,
/// or events or steps. While it is the whole recording, it grows with the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// The shown part; `None` for the whole recording.
    part: Option<Range<u64>>,
    /// The shortest part.
    least_length: u64,
}

impl Default for TimeSpan {
    fn default() -> Self {
        Self::new(MIN_LENGTH_NS)
    }
}

/// Returns a whole recording's range of time, extended to the shortest range that can be shown.
pub fn whole(start_ns: u64, end_ns: u64) -> Range<u64> {
    // At u64::MAX the range is extended at its start instead of its end.
    let start_ns = start_ns.min(u64::MAX - MIN_LENGTH_NS);
    start_ns..end_ns.max(start_ns + MIN_LENGTH_NS)
}

impl TimeSpan {
    /// Creates the range of a whole recording, of which at least `least_length` is shown.
    pub const fn new(least_length: u64) -> Self {
        Self { part: None, least_length }
    }

    /// Returns the shown range if it is only a part of the recording; `None` if
    /// the whole recording is shown.
    pub fn part(&self) -> Option<Range<u64>> {
        self.part.clone()
    }

    /// Returns the shown range: a part of the recording, or `whole`, the range of the whole
    /// recording.
    pub fn within(&self, whole: Range<u64>) -> Range<u64> {
        self.part.clone().unwrap_or(whole)
    }

    /// Shows `range`, moved and shortened to fit into `whole`, the recording's range.
    pub fn set(&mut self, range: Range<u64>, whole: Range<u64>) {
        let length = range
            .end
            .saturating_sub(range.start)
            .clamp(self.least_length.min(whole.end - whole.start), whole.end - whole.start);
        let start = range.start.clamp(whole.start, whole.end - length);
        let range = start..start + length;
        self.part = (range != whole).then_some(range);
    }

    /// Shows a range `factor` times as long (below 1: shorter), with position `around` at an
    /// unchanged pixel. The result stays within `whole`, the recording's range.
    pub fn zoom(&mut self, factor: f64, around: u64, whole: Range<u64>) {
        let range = self.within(whole.clone());
        let around = around.clamp(range.start, range.end);
        let old_length = range.end - range.start;
        // A product above u64::MAX saturates and is then clamped to the whole.
        let length = ((old_length as f64 * factor) as u64)
            .clamp(self.least_length.min(whole.end - whole.start), whole.end - whole.start);
        let left = ((around - range.start) as f64 / old_length as f64 * length as f64) as u64;
        let start = around.saturating_sub(left);
        self.set(start..start.saturating_add(length), whole);
    }

    /// Moves the shown range by `fraction` of its length (negative: to earlier times), at most to
    /// an end of `whole`, the recording's range.
    pub fn pan(&mut self, fraction: f64, whole: Range<u64>) {
        let range = self.within(whole.clone());
        let length = range.end - range.start;
        let start = range.start.saturating_add_signed((fraction * length as f64) as i64);
        self.set(start..start.saturating_add(length), whole);
    }

    /// Centers the shown range on `position` if the position is outside of it, without leaving
    /// `whole`, the recording's range. Returns true if the range has moved.
    pub fn scroll_to(&mut self, position: u64, whole: Range<u64>) -> bool {
        let Some(range) = self.part.clone().filter(|range| !(range.start..=range.end).contains(&position)) else {
            return false;
        };
        let length = range.end - range.start;
        let start = position.saturating_sub(length / 2);
        self.set(start..start.saturating_add(length), whole);
        true
    }

    /// Moves the shown range to the end of `whole`, the recording's range, without changing its
    /// length.
    pub fn scroll_to_end(&mut self, whole: Range<u64>) {
        if let Some(range) = self.part.clone() {
            let start = whole.end.saturating_sub(range.end - range.start);
            self.set(start..whole.end, whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Range<u64> = 1_000_000..9_000_000;

    #[test]
    fn zoom_keeps_its_center_and_is_limited_to_the_whole() {
        let mut span = TimeSpan::default();
        span.zoom(0.5, 3_000_000, WHOLE);
        assert_eq!(span.within(WHOLE), 2_000_000..6_000_000);
        span.zoom(1e-12, 3_000_000, WHOLE);
        assert_eq!(span.within(WHOLE), 2_999_975..3_000_075);
        span.zoom(1e30, 3_000_000, WHOLE);
        assert_eq!(span.part(), None);
    }

    #[test]
    fn pan_stops_at_both_ends() {
        let mut span = TimeSpan::default();
        span.set(2_000_000..3_000_000, WHOLE);
        span.pan(-0.5, WHOLE);
        assert_eq!(span.within(WHOLE), 1_500_000..2_500_000);
        span.pan(-7.0, WHOLE);
        assert_eq!(span.within(WHOLE), 1_000_000..2_000_000);
        span.pan(1e300, WHOLE);
        assert_eq!(span.within(WHOLE), 8_000_000..9_000_000);
    }

    #[test]
    fn range_scrolls_to_a_moment_and_to_the_end() {
        let mut span = TimeSpan::default();
        assert!(!span.scroll_to(5_000_000, WHOLE));
        span.set(2_000_000..3_000_000, WHOLE);
        assert!(!span.scroll_to(3_000_000, WHOLE));
        assert!(span.scroll_to(5_000_000, WHOLE));
        assert_eq!(span.within(WHOLE), 4_500_000..5_500_000);
        span.scroll_to_end(1_000_000..20_000_000);
        assert_eq!(span.within(WHOLE), 19_000_000..20_000_000);
    }

    #[test]
    fn any_start_and_end_make_a_valid_range() {
        for (start, end) in [(0, 0), (5, 5), (u64::MAX, u64::MAX), (0, u64::MAX), (9, 3)] {
            let whole = whole(start, end);
            assert!(whole.end - whole.start >= MIN_LENGTH_NS);
            let mut span = TimeSpan::default();
            span.zoom(0.3, end, whole.clone());
            span.pan(0.4, whole.clone());
            let range = span.within(whole.clone());
            assert!(whole.start <= range.start && range.start < range.end && range.end <= whole.end);
        }
    }
}
