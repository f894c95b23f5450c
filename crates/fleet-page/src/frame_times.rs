//! Durations of frames.

use std::collections::VecDeque;

/// Maximum number of frames whose durations are kept.
const MAX_FRAMES: usize = 600;

/// The durations of the newest frames, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct FrameTimes(VecDeque<f64>);

impl FrameTimes {
    /// Adds the duration of a frame in milliseconds; drops the oldest one if there are too many.
    pub fn add(&mut self, time_ms: f64) {
        if self.0.len() == MAX_FRAMES {
            self.0.pop_front();
        }
        self.0.push_back(time_ms);
    }

    /// Returns the duration in milliseconds that 95% of the newest frames do not exceed; 0 without
    /// frames.
    #[must_use]
    pub fn p95_ms(&self) -> f64 {
        percentile_95(&mut self.0.iter().copied().collect::<Vec<_>>())
    }
}

/// Returns the 95th percentile of `values`, and reorders them; 0 without values.
pub(crate) fn percentile_95(values: &mut [f64]) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let index = (values.len() * 95).div_ceil(100) - 1;
    *values.select_nth_unstable_by(index.min(last), f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_covers_the_newest_frames() {
        let mut times = FrameTimes::default();
        assert_eq!(times.p95_ms(), 0.0);
        times.add(7.0);
        assert_eq!(times.p95_ms(), 7.0);
        for time in 1..=100 {
            times.add(f64::from(time));
        }
        assert_eq!(times.p95_ms(), 95.0);
        for _ in 0..MAX_FRAMES {
            times.add(3.0);
        }
        assert_eq!(times.p95_ms(), 3.0);
    }
}
