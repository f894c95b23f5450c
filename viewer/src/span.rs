//! The stretch of time that the timeline shows.

use std::ops::Range;

/// The shortest stretch that can be looked at.
const SHORTEST_NS: u64 = 100;

/// A stretch of a recording's time, in the recording's own nanoseconds. While it is the whole, it grows with the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeSpan {
    part: Option<Range<u64>>,
}

/// The whole of a recording from `start_ns` to `end_ns`, as long as can be looked at.
pub(crate) fn whole(start_ns: u64, end_ns: u64) -> Range<u64> {
    // At the very end of time there is no room behind, so the room is taken before.
    let start_ns = start_ns.min(u64::MAX - SHORTEST_NS);
    start_ns..end_ns.max(start_ns + SHORTEST_NS)
}

impl TimeSpan {
    /// The part that is shown, if it is not the whole.
    pub(crate) fn part(&self) -> Option<Range<u64>> {
        self.part.clone()
    }

    /// What is shown of the `whole`.
    pub(crate) fn of(&self, whole: Range<u64>) -> Range<u64> {
        self.part.clone().unwrap_or(whole)
    }

    /// Shows `range`, as far as the `whole` has it; all of the whole where that is what is left.
    pub(crate) fn set(&mut self, range: Range<u64>, whole: Range<u64>) {
        let length = range.end.saturating_sub(range.start).clamp(SHORTEST_NS, whole.end - whole.start);
        let start = range.start.clamp(whole.start, whole.end - length);
        let range = start..start + length;
        self.part = (range != whole).then_some(range);
    }

    /// Shows `factor` times as much time, keeping `around_ns` where it is.
    pub(crate) fn zoom(&mut self, factor: f64, around_ns: u64, whole: Range<u64>) {
        let range = self.of(whole.clone());
        let around = around_ns.clamp(range.start, range.end);
        let before = range.end - range.start;
        // A product beyond what fits becomes the greatest number, and that the whole.
        let length = ((before as f64 * factor) as u64).clamp(SHORTEST_NS, whole.end - whole.start);
        let left = ((around - range.start) as f64 / before as f64 * length as f64) as u64;
        let start = around.saturating_sub(left);
        self.set(start..start.saturating_add(length), whole);
    }

    /// Moves by a share of its length.
    pub(crate) fn pan(&mut self, share: f64, whole: Range<u64>) {
        let range = self.of(whole.clone());
        let length = range.end - range.start;
        let start = range.start.saturating_add_signed((share * length as f64) as i64);
        self.set(start..start.saturating_add(length), whole);
    }

    /// Moves so that `now_ns` is in view, in the middle if it was not. Says whether it had to.
    pub(crate) fn show(&mut self, now_ns: u64, whole: Range<u64>) -> bool {
        let Some(range) = self.part.clone().filter(|range| !(range.start..=range.end).contains(&now_ns)) else {
            return false;
        };
        let length = range.end - range.start;
        let start = now_ns.saturating_sub(length / 2);
        self.set(start..start.saturating_add(length), whole);
        true
    }

    /// Moves to the end of the `whole`.
    pub(crate) fn slide_to_end(&mut self, whole: Range<u64>) {
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
    fn zooming_keeps_the_place_and_ends_at_the_whole() {
        let mut span = TimeSpan::default();
        span.zoom(0.5, 3_000_000, WHOLE);
        assert_eq!(span.of(WHOLE), 2_000_000..6_000_000);
        span.zoom(1e-12, 3_000_000, WHOLE);
        assert_eq!(span.of(WHOLE), 2_999_975..3_000_075);
        span.zoom(1e30, 3_000_000, WHOLE);
        assert_eq!(span.part(), None);
    }

    #[test]
    fn moving_stops_at_the_ends() {
        let mut span = TimeSpan::default();
        span.set(2_000_000..3_000_000, WHOLE);
        span.pan(-0.5, WHOLE);
        assert_eq!(span.of(WHOLE), 1_500_000..2_500_000);
        span.pan(-7.0, WHOLE);
        assert_eq!(span.of(WHOLE), 1_000_000..2_000_000);
        span.pan(1e300, WHOLE);
        assert_eq!(span.of(WHOLE), 8_000_000..9_000_000);
    }

    #[test]
    fn it_follows_the_moment_and_the_end() {
        let mut span = TimeSpan::default();
        assert!(!span.show(5_000_000, WHOLE));
        span.set(2_000_000..3_000_000, WHOLE);
        assert!(!span.show(3_000_000, WHOLE));
        assert!(span.show(5_000_000, WHOLE));
        assert_eq!(span.of(WHOLE), 4_500_000..5_500_000);
        span.slide_to_end(1_000_000..20_000_000);
        assert_eq!(span.of(WHOLE), 19_000_000..20_000_000);
    }

    #[test]
    fn any_times_make_a_whole() {
        for (start, end) in [(0, 0), (5, 5), (u64::MAX, u64::MAX), (0, u64::MAX), (9, 3)] {
            let whole = whole(start, end);
            assert!(whole.end - whole.start >= SHORTEST_NS);
            let mut span = TimeSpan::default();
            span.zoom(0.3, end, whole.clone());
            span.pan(0.4, whole.clone());
            let range = span.of(whole.clone());
            assert!(whole.start <= range.start && range.start < range.end && range.end <= whole.end);
        }
    }
}
