//! The newest seconds of one rank.

use std::collections::VecDeque;

use super::summary::DeviceSummary;

/// Length of the window, in nanoseconds: 3 s. Longer than most training steps, so that ranks that
/// are at different points of a step have the same peak.
const WINDOW_NS: u64 = 3_000_000_000;
/// The most summaries in a window: twice as many as arrive in that time.
const MAX_SUMMARIES: usize = 60;
/// Distance of the two moments between which growth is measured, in nanoseconds: 60 s.
const GROWTH_NS: u64 = 60_000_000_000;
/// Interval of the stored minima for growth, in nanoseconds: 1 s.
const GROWTH_INTERVAL_NS: u64 = 1_000_000_000;

/// What a rank held in the window; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankFigures {
    /// Allocated bytes now.
    pub allocated: u64,
    /// Reserved bytes now.
    pub reserved: u64,
    /// The most allocated bytes.
    pub peak_allocated: u64,
    /// The most reserved bytes.
    pub peak_reserved: u64,
    /// The highest external fragmentation, from 0 to 1.
    pub fragmentation: f64,
    /// Growth of the fewest allocated bytes of each window, in bytes a second, over the last
    /// minute.
    pub growth: f64,
}

/// The totals of a rank in the newest seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct RankWindow {
    /// Time by the broker's clock, and totals.
    recent: VecDeque<(u64, DeviceSummary)>,
    /// The fewest allocated bytes in windows that ended at these times.
    minima: VecDeque<(u64, u64)>,
}

impl RankWindow {
    /// Adds totals. Forgets those that are older than the window.
    pub(super) fn add(&mut self, time_ns: u64, total: DeviceSummary) {
        // A message that is stored later is newer, whatever its clock says.
        let time_ns = self.recent.back().map_or(time_ns, |(newest, _)| time_ns.max(*newest));
        self.recent.push_back((time_ns, total));
        while self.recent.len() > MAX_SUMMARIES
            || self.recent.front().is_some_and(|(oldest, _)| oldest.saturating_add(WINDOW_NS) < time_ns)
        {
            self.recent.pop_front();
        }
        let is_due = self.minima.back().is_none_or(|(newest, _)| newest.saturating_add(GROWTH_INTERVAL_NS) <= time_ns);
        let is_full =
            self.recent.front().is_some_and(|(oldest, _)| oldest.saturating_add(WINDOW_NS * 9 / 10) <= time_ns);
        if is_due && is_full {
            let least = self.recent.iter().map(|(_, total)| total.allocated).min().unwrap_or(0);
            self.minima.push_back((time_ns, least));
            while self.minima.front().is_some_and(|(oldest, _)| oldest.saturating_add(GROWTH_NS) < time_ns) {
                self.minima.pop_front();
            }
        }
    }

    /// Returns what the rank held in the window.
    pub(super) fn figures(&self) -> RankFigures {
        let Some((_, now)) = self.recent.back() else { return RankFigures::default() };
        let most = |field: fn(&DeviceSummary) -> u64| self.recent.iter().map(|(_, total)| field(total)).max();
        let fragmentation = self.recent.iter().map(|(_, total)| total.fragmentation()).fold(0.0, f64::max);
        let growth = match (self.minima.front(), self.minima.back()) {
            (Some(&(from_ns, from)), Some(&(to_ns, to))) if to_ns > from_ns => {
                (to as f64 - from as f64) / ((to_ns - from_ns) as f64 / 1e9)
            }
            _ => 0.0,
        };
        RankFigures {
            allocated: now.allocated,
            reserved: now.reserved,
            peak_allocated: most(|total| total.allocated).unwrap_or(0),
            peak_reserved: most(|total| total.reserved).unwrap_or(0),
            fragmentation,
            growth,
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
        // Allocated bytes swing between steps, and grow by 10 bytes a second below that.
        for tick in 0..300_u64 {
            let allocated = 1000 + tick + if tick % 10 == 3 { 500 } else { 0 };
            let total =
                DeviceSummary { allocated, reserved: 5000, free: 100, largest_free: 25, ..DeviceSummary::default() };
            window.add(tick * 100 * MS, total);
        }
        let figures = window.figures();
        assert_eq!((figures.allocated, figures.reserved), (1299, 5000));
        assert_eq!(figures.peak_allocated, 1793);
        assert!((figures.growth - 10.0).abs() < 0.5, "{figures:?}");
        assert!((figures.fragmentation - 0.75).abs() < 1e-9);
        assert!(window.recent.len() <= 31 && window.minima.len() <= 61);
    }

    #[test]
    fn clock_that_goes_back_changes_nothing() {
        let mut window = RankWindow::default();
        for time_ns in [5_000_000_000, 1_000_000_000, u64::MAX / 2, 0] {
            window.add(time_ns, DeviceSummary { allocated: 7, ..DeviceSummary::default() });
        }
        assert_eq!(window.figures().peak_allocated, 7);
    }
}
