//! The newest seconds of one rank.

use std::collections::VecDeque;

use super::summary::DeviceSummary;

/// Shortest length of the window, in nanoseconds: 3 s.
const MIN_WINDOW_NS: u64 = 3_000_000_000;
/// Longest length of the window, in nanoseconds: two minutes.
const MAX_WINDOW_NS: u64 = 120_000_000_000;
/// Length of the window in tenths of a step: a rank then shows its peak, wherever in a step it is.
const WINDOW_STEP_TENTHS: u64 = 22;
/// Number of parts into which a window is divided; each keeps only its extremes.
const PARTS: u64 = 30;
/// Number of step durations of which the median is taken.
const MAX_STEPS: usize = 5;
/// Minimum time over which growth is measured, in nanoseconds: 60 s. Four windows count if they are
/// longer.
const GROWTH_NS: u64 = 60_000_000_000;
/// Interval of the stored minima for growth, in nanoseconds: 1 s.
const GROWTH_INTERVAL_NS: u64 = 1_000_000_000;

/// Memory of a rank in the window; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RankFigures {
    /// Peak of the allocated bytes.
    pub(super) peak_allocated: u64,
    /// Peak of the reserved bytes.
    pub(super) peak_reserved: u64,
    /// Peak of the free bytes outside of the largest free block.
    pub(super) fragmented: u64,
    /// The highest external fragmentation, from 0 to 1.
    pub(super) fragmentation: f64,
    /// Growth of the fewest allocated bytes of each window, in bytes a second, over the last
    /// minute.
    pub(super) growth: f64,
}

/// The extremes of a part of the window.
#[derive(Clone, Copy, Debug)]
struct WindowPart {
    start_ns: u64,
    end_ns: u64,
    least_allocated: u64,
    most: RankFigures,
}

/// Memory of a rank in the newest seconds, at least two training steps.
#[derive(Clone, Debug, Default)]
pub(super) struct RankWindow {
    parts: VecDeque<WindowPart>,
    /// The fewest allocated bytes in windows that ended at these times.
    minima: VecDeque<(u64, u64)>,
    /// When the first totals were added; `None` before.
    first_ns: Option<u64>,
    /// True once the parts have covered a whole window.
    has_been_full: bool,
    /// The newest step and when it began.
    step: Option<(u64, u64)>,
    /// Durations of the last steps, in nanoseconds.
    step_durations: VecDeque<u64>,
}

impl RankWindow {
    /// Adds the totals of a summary, and the step that the rank is in. Drops figures that are older
    /// than the window.
    pub(super) fn add(&mut self, time_ns: u64, total: &DeviceSummary, step: Option<u64>) {
        // A message that is stored later is newer, regardless of its clock.
        let time_ns = self.parts.back().map_or(time_ns, |newest| time_ns.max(newest.end_ns));
        self.first_ns.get_or_insert(time_ns);
        self.add_step(time_ns, step);
        let window_ns = self.window_ns();
        let part = self.parts.back_mut().filter(|part| time_ns - part.start_ns < window_ns / PARTS);
        let new = WindowPart {
            start_ns: time_ns,
            end_ns: time_ns,
            least_allocated: total.allocated,
            most: RankFigures {
                peak_allocated: total.allocated,
                peak_reserved: total.reserved,
                fragmented: total.free.saturating_sub(total.largest_free),
                fragmentation: total.fragmentation(),
                growth: 0.0,
            },
        };
        match part {
            Some(part) => {
                part.end_ns = time_ns;
                part.least_allocated = part.least_allocated.min(new.least_allocated);
                part.most = part.most.larger_of_each(new.most);
            }
            None => self.parts.push_back(new),
        }
        let Some(begin_ns) = time_ns.checked_sub(window_ns) else { return };
        let is_full = self.parts.front().is_some_and(|oldest| oldest.start_ns <= begin_ns);
        while self.parts.front().is_some_and(|oldest| oldest.end_ns < begin_ns) {
            self.parts.pop_front();
        }
        // The length of a window with steps is known after the first step.
        let is_length_known = self.step.is_none()
            || !self.step_durations.is_empty()
            || self.first_ns.is_some_and(|first_ns| time_ns - first_ns >= MAX_WINDOW_NS);
        self.has_been_full |= is_full && is_length_known;
        self.add_minimum(time_ns, window_ns, is_full && is_length_known);
    }

    /// Returns true once the figures have covered a whole window: before, a rank may not have
    /// reached its peak yet.
    pub(super) fn has_been_full(&self) -> bool {
        self.has_been_full
    }

    /// Returns true once the growth is known.
    pub(super) fn has_growth(&self) -> bool {
        self.minima.len() > 1
    }

    /// Stores when a step began and how long the one before it took.
    fn add_step(&mut self, time_ns: u64, step: Option<u64>) {
        let Some(step) = step else { return };
        match self.step {
            Some((known, _)) if known == step => {}
            Some((known, began_ns)) => {
                if known.checked_add(1) == Some(step) {
                    if self.step_durations.len() == MAX_STEPS {
                        self.step_durations.pop_front();
                    }
                    self.step_durations.push_back(time_ns - began_ns);
                }
                self.step = Some((step, time_ns));
            }
            None => {
                self.step = Some((step, time_ns));
                // The memory before the first step says nothing about that of the steps.
                self.has_been_full = false;
                self.minima.clear();
            }
        }
    }

    /// Returns the length of the window, in nanoseconds.
    fn window_ns(&self) -> u64 {
        let mut durations: Vec<u64> = self.step_durations.iter().copied().collect();
        durations.sort_unstable();
        let median = durations.get(durations.len() / 2).copied().unwrap_or(0);
        (median.saturating_mul(WINDOW_STEP_TENTHS) / 10).clamp(MIN_WINDOW_NS, MAX_WINDOW_NS)
    }

    /// Stores the fewest allocated bytes of a full window, once a second.
    fn add_minimum(&mut self, time_ns: u64, window_ns: u64, is_full: bool) {
        let is_due = self.minima.back().is_none_or(|(newest, _)| newest.saturating_add(GROWTH_INTERVAL_NS) <= time_ns);
        if is_due && is_full {
            let least = self.parts.iter().map(|part| part.least_allocated).min().unwrap_or(0);
            self.minima.push_back((time_ns, least));
            let begin_ns = time_ns.saturating_sub(GROWTH_NS.max(4 * window_ns));
            while self.minima.front().is_some_and(|(oldest, _)| *oldest < begin_ns) {
                self.minima.pop_front();
            }
        }
    }

    /// Returns the rank's memory in the window.
    pub(super) fn figures(&self) -> RankFigures {
        let growth = match (self.minima.front(), self.minima.back()) {
            (Some(&(from_ns, from)), Some(&(to_ns, to))) if to_ns > from_ns => {
                (to as f64 - from as f64) / ((to_ns - from_ns) as f64 / 1e9)
            }
            _ => 0.0,
        };
        let most = self.parts.iter().map(|part| part.most).fold(RankFigures::default(), RankFigures::larger_of_each);
        RankFigures { growth, ..most }
    }
}

impl RankFigures {
    /// Returns the larger value of each figure, except the growth, which becomes that of `self`.
    fn larger_of_each(self, other: Self) -> Self {
        Self {
            peak_allocated: self.peak_allocated.max(other.peak_allocated),
            peak_reserved: self.peak_reserved.max(other.peak_reserved),
            fragmented: self.fragmented.max(other.fragmented),
            fragmentation: self.fragmentation.max(other.fragmentation),
            growth: self.growth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn peaks_cover_the_window_and_growth_the_minima() {
        let mut window = RankWindow::default();
        assert_eq!(window.figures(), RankFigures::default());
        let mut known_from = (None, None);
        // Allocated bytes swing between steps, and grow by 10 bytes a second below that.
        for tick in 0..300_u64 {
            let allocated = 1000 + tick + if tick % 10 == 3 { 500 } else { 0 };
            let free = DeviceSummary { free: 100, largest_free: 25, ..DeviceSummary::default() };
            window.add(tick * 100 * MS, &DeviceSummary { allocated, reserved: 5000, ..free }, None);
            known_from.0 = known_from.0.or_else(|| window.has_been_full().then_some(tick));
            known_from.1 = known_from.1.or_else(|| window.has_growth().then_some(tick));
        }
        assert_eq!(known_from, (Some(30), Some(40)));
        let figures = window.figures();
        assert_eq!((figures.peak_allocated, figures.peak_reserved, figures.fragmented), (1793, 5000, 75));
        assert!((figures.growth - 10.0).abs() < 0.5, "{figures:?}");
        assert!((figures.fragmentation - 0.75).abs() < 1e-9);
        assert!(window.parts.len() <= 32 && window.minima.len() <= 61);
    }

    #[test]
    fn window_covers_two_steps_however_long_they_are() {
        let mut window = RankWindow::default();
        // A step takes 20 s, and its peak is a tenth of a second.
        for tick in 0..2000_u64 {
            let allocated = if tick % 200 == 90 { 5000 } else { 1000 };
            window.add(tick * 100 * MS, &DeviceSummary { allocated, ..DeviceSummary::default() }, Some(tick / 200));
            // At the end of the first step, the window has 3 s and grows to 44 s.
            if !(590..630).contains(&tick) {
                let is_known = tick >= 170 + 440;
                assert_eq!((window.has_been_full(), window.has_growth()), (is_known, is_known), "tick {tick}");
            }
            if tick > 800 {
                assert_eq!(window.figures().peak_allocated, 5000, "tick {tick}");
            }
        }
        assert_eq!(window.window_ns(), 44_000 * MS);
        assert!(window.parts.len() <= 32, "{}", window.parts.len());
    }

    #[test]
    fn clock_that_goes_back_changes_nothing() {
        let mut window = RankWindow::default();
        for (time_ns, step) in [(5_000_000_000, 1), (1_000_000_000, u64::MAX), (u64::MAX / 2, 2), (0, 3)] {
            window.add(time_ns, &DeviceSummary { allocated: 7, ..DeviceSummary::default() }, Some(step));
        }
        assert_eq!(window.figures().peak_allocated, 7);
    }
}
