//! How far a process's clock is off the broker's.
//!
//! The broker stores each summary at a time T of its clock, which is between the sending and the
//! arrival of the acknowledgement by the process's clock. So the offset, broker minus process, is
//! between T − acknowledged and T − sent. All summaries of a window together narrow the interval
//! (Cristian's algorithm, with the intersection of Marzullo's).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Maximum number of measurements in a window: a minute of summaries that are acknowledged one by
/// one.
const MAX_MEASUREMENTS: usize = 600;
/// Age of the oldest measurement in a window, in nanoseconds: one minute. A quartz clock drifts by
/// at most a few milliseconds in that time.
const WINDOW_NS: u64 = 60_000_000_000;

/// Bounds of a clock's offset, in nanoseconds: what must be added to a time of the process to get a
/// time of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetEstimate {
    /// The middle of the bounds.
    pub offset_ns: i64,
    /// The largest error: half of the distance of the bounds.
    pub error_ns: u64,
}

/// One measurement: bounds of the offset, and when it was made by the broker's clock.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    broker_ns: u64,
    least: i64,
    most: i64,
}

/// Estimates the offset of one process's clock.
#[derive(Clone, Debug, Default)]
pub struct ClockOffset {
    measurements: VecDeque<Measurement>,
    /// Summaries whose acknowledgement is not known yet: number, sending time, broker's time.
    unacknowledged: VecDeque<(u64, u64, u64)>,
}

impl ClockOffset {
    /// Adds a summary: its number, when it was sent by the process's clock, and when it was stored
    /// by the broker's clock.
    pub fn sent(&mut self, number: u64, sent_ns: u64, broker_ns: u64) {
        if self.unacknowledged.len() == MAX_MEASUREMENTS {
            self.unacknowledged.pop_front();
        }
        self.unacknowledged.push_back((number, sent_ns, broker_ns));
    }

    /// Adds when the acknowledgement of a summary arrived, by the process's clock.
    pub fn acknowledged(&mut self, number: u64, acknowledged_ns: u64) {
        while let Some((known, sent_ns, broker_ns)) = self.unacknowledged.pop_front_if(|(known, ..)| *known <= number) {
            if known == number && acknowledged_ns >= sent_ns {
                self.add(Measurement {
                    broker_ns,
                    least: difference(broker_ns, acknowledged_ns),
                    most: difference(broker_ns, sent_ns),
                });
            }
        }
    }

    /// Adds a measurement and forgets old ones.
    fn add(&mut self, new: Measurement) {
        // A clock that was set contradicts earlier measurements.
        if self.bounds().is_some_and(|(least, most)| new.least > most || new.most < least) {
            self.measurements.clear();
        }
        self.measurements.push_back(new);
        while self.measurements.len() > MAX_MEASUREMENTS
            || self
                .measurements
                .front()
                .is_some_and(|oldest| oldest.broker_ns.saturating_add(WINDOW_NS) < new.broker_ns)
        {
            self.measurements.pop_front();
        }
    }

    /// Returns the tightest bounds of all measurements.
    fn bounds(&self) -> Option<(i64, i64)> {
        let least = self.measurements.iter().map(|one| one.least).max()?;
        let most = self.measurements.iter().map(|one| one.most).min()?;
        // Drift can make old measurements contradict new ones a little.
        Some((least.min(most), most.max(least)))
    }

    /// Returns the estimate; `None` before the first measurement.
    #[must_use]
    pub fn estimate(&self) -> Option<OffsetEstimate> {
        let (least, most) = self.bounds()?;
        let error_ns = least.abs_diff(most).div_ceil(2);
        Some(OffsetEstimate { offset_ns: least.saturating_add_unsigned(error_ns), error_ns })
    }
}

/// Returns `a - b`, limited to the range of `i64`.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Measures with a clock that is `offset_ns` behind the broker's, over connections that take
    /// `delays` there and back.
    fn measure(clock: &mut ClockOffset, start_ns: u64, offset_ns: i64, delays: &[(u64, u64)]) {
        for (number, &(there, back)) in delays.iter().enumerate() {
            let number = start_ns + number as u64;
            let broker_ns = 1_000_000 * MS + number * 100 * MS;
            let to_process = |broker_ns: u64| broker_ns.checked_add_signed(-offset_ns).expect("a time after 1970");
            clock.sent(number, to_process(broker_ns - there), broker_ns);
            clock.acknowledged(number, to_process(broker_ns + back));
        }
    }

    #[test]
    fn offset_is_within_its_error() {
        for offset_ns in [0, 3_000_000_000, -250_000_000] {
            let mut clock = ClockOffset::default();
            assert_eq!(clock.estimate(), None);
            measure(&mut clock, 0, offset_ns, &[(MS, 20 * MS), (30 * MS, MS), (5 * MS, 5 * MS)]);
            let estimate = clock.estimate().expect("it was measured");
            // The fastest message in each direction gives the tightest bounds.
            assert_eq!(estimate.error_ns, MS);
            assert!(estimate.offset_ns.abs_diff(offset_ns) <= estimate.error_ns, "{estimate:?}");
        }
    }

    #[test]
    fn clock_that_is_set_is_measured_anew() {
        let mut clock = ClockOffset::default();
        measure(&mut clock, 0, 0, &[(MS, MS); 10]);
        measure(&mut clock, 10, 5_000_000_000, &[(MS, MS); 2]);
        let estimate = clock.estimate().expect("it was measured");
        assert_eq!(estimate, OffsetEstimate { offset_ns: 5_000_000_000, error_ns: MS });
    }

    #[test]
    fn impossible_times_are_ignored() {
        let mut clock = ClockOffset::default();
        clock.sent(1, 100, 200);
        clock.acknowledged(1, 50);
        clock.acknowledged(7, 300);
        assert_eq!(clock.estimate(), None);
        clock.sent(8, 0, u64::MAX);
        clock.acknowledged(8, u64::MAX);
        assert!(clock.estimate().is_some());
        for number in 0..10_000 {
            clock.sent(number, number, number);
        }
        assert!(clock.unacknowledged.len() <= MAX_MEASUREMENTS);
    }
}
