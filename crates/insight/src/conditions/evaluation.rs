//! Whether a condition holds for a device.

use std::cmp::Ordering;

use vramscope_trace::{ByteSize, Count, PerRecording};

use super::condition::{Condition, Limit, PERCENT};
use super::metric::Value;
use crate::comparison::DeviceTotals;

/// The value of a condition's metric in both recordings, and whether the condition holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The metric in each recording; 0 in a recording without the device.
    pub values: PerRecording<Value>,
    /// Whether the condition holds.
    pub holds: bool,
}

impl Condition {
    /// Evaluates the condition for a device. A recording without the device counts as one in which
    /// all metrics are 0. Bytes and counts are compared exactly.
    ///
    /// A change relative to 0 is infinite, unless B is 0, too: then it is 0.
    #[must_use]
    pub fn evaluate(&self, totals: &PerRecording<Option<DeviceTotals>>) -> Evaluation {
        let value = |totals: Option<DeviceTotals>| self.metric.value(&totals.unwrap_or_default());
        let (a, b) = (value(totals.a), value(totals.b));
        let holds = |value: f64, limit: f64| self.comparator.holds(value, limit);
        let holds_whole = |value: i128, limit: i128| self.comparator.holds(value, limit);
        let share = |value| match value {
            Value::Share(share) => share,
            Value::Bytes(number) | Value::Count(number) => number as f64,
        };
        let whole = |value| match value {
            Value::Bytes(number) | Value::Count(number) => Some(i128::from(number)),
            Value::Share(_) => None,
        };
        let wholes = whole(a).zip(whole(b));
        let holds = match (self.limit, wholes) {
            // (b − a) / a ≥ percent / 100, without a division.
            (Limit::Relative(percent), Some((a, b))) if a > 0 => holds_whole((b - a) * 100 * PERCENT, percent * a),
            (Limit::Relative(percent), _) => {
                holds(relative(share(a), share(b)), percent as f64 / PERCENT as f64 / 100.0)
            }
            (Limit::Change(limit), Some((a, b))) => holds_whole(b - a, limit),
            (Limit::Change(limit), None) => holds(share(b) - share(a), limit as f64),
            (Limit::ShareChange(limit), _) => holds(share(b) - share(a), limit),
            (Limit::Whole(limit), Some((_, b))) => holds_whole(b, i128::from(limit)),
            (Limit::Whole(limit), None) => holds(share(b), limit as f64),
            (Limit::Share(limit), _) => holds(share(b), limit),
        };
        Evaluation { values: PerRecording { a, b }, holds }
    }
}

/// Returns the change of `b` relative to `a`; infinite if only `a` is 0.
fn relative(a: f64, b: f64) -> f64 {
    match (a == 0.0, b == 0.0) {
        (true, true) => 0.0,
        (true, false) => f64::INFINITY,
        _ => (b - a) / a,
    }
}

impl Evaluation {
    /// Returns the change as text: `+7.19 MiB (+0.2%)`, `-3`, `+1.5 points`, `0`.
    #[must_use]
    pub fn change_text(&self) -> String {
        let number = |a: u64, b: u64, text: fn(u64) -> String| {
            let (sign, difference) = match a.cmp(&b) {
                Ordering::Equal => return "0".to_owned(),
                Ordering::Less => ('+', b - a),
                Ordering::Greater => ('-', a - b),
            };
            let percent = (a > 0).then(|| format!(" ({:+.1}%)", relative(a as f64, b as f64) * 100.0));
            format!("{sign}{}{}", text(difference), percent.unwrap_or_default())
        };
        match (self.values.a, self.values.b) {
            (Value::Bytes(a), Value::Bytes(b)) => number(a, b, |bytes| ByteSize(bytes).to_string()),
            (Value::Count(a), Value::Count(b)) => number(a, b, |count| Count(count).to_string()),
            (Value::Share(a), Value::Share(b)) => format!("{:+.1} points", (b - a) * 100.0),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates a condition for two peaks of allocated bytes.
    fn holds(condition: &str, a: u64, b: u64) -> bool {
        let condition: Condition = condition.parse().expect("the condition is valid");
        let totals = |bytes| Some(DeviceTotals { peak_allocated_bytes: bytes, ..DeviceTotals::default() });
        condition.evaluate(&PerRecording { a: totals(a), b: totals(b) }).holds
    }

    #[test]
    fn changes_are_compared_exactly() {
        for (condition, a, b, expected) in [
            ("peak_allocated > +2%", 100, 102, false),
            ("peak_allocated >= +2%", 100, 102, true),
            ("peak_allocated > +2%", 100, 103, true),
            ("peak_allocated > +2%", u64::MAX - 1, u64::MAX, false),
            ("peak_allocated > +0%", u64::MAX - 1, u64::MAX, true),
            ("peak_allocated < -5%", 100, 95, false),
            ("peak_allocated <= -5%", 100, 95, true),
            ("peak_allocated > -5%", 100, 96, true),
            ("peak_allocated > +2%", 0, 0, false),
            ("peak_allocated >= +2%", 0, 0, false),
            ("peak_allocated > +2%", 0, 1, true),
            ("peak_allocated < -2%", 0, 1, false),
            ("peak_allocated <= -100%", 7, 0, true),
            ("peak_allocated > +1KiB", 0, 1024, false),
            ("peak_allocated >= +1KiB", 0, 1024, true),
            ("peak_allocated < -1KiB", 2048, 1023, true),
            ("peak_allocated > 1KiB", 0, 1024, false),
            ("peak_allocated > 1023", 0, 1024, true),
            ("peak_allocated <= 0", 5, 0, true),
            ("peak_allocated > +100%", 0, u64::MAX, true),
            ("peak_allocated < +999999999%", 1, u64::MAX, false),
        ] {
            assert_eq!(holds(condition, a, b), expected, "{condition}, {a}, {b}");
        }
    }

    #[test]
    fn shares_are_compared() {
        let totals = |share| Some(DeviceTotals { peak_fragmentation: share, ..DeviceTotals::default() });
        let holds = |condition: &str, a, b| {
            let condition: Condition = condition.parse().expect("the condition is valid");
            condition.evaluate(&PerRecording { a: totals(a), b: totals(b) })
        };
        assert!(holds("peak_fragmentation > 30%", 0.1, 0.31).holds);
        assert!(!holds("peak_fragmentation > 0.3", 0.1, 0.3).holds);
        assert!(holds("peak_fragmentation > +0.1", 0.1, 0.25).holds);
        assert!(holds("peak_fragmentation > +100%", 0.1, 0.25).holds);
        assert!(!holds("peak_fragmentation > +200%", 0.1, 0.25).holds);
        assert_eq!(holds("peak_fragmentation > 0", 0.1, 0.25).change_text(), "+15.0 points");
    }

    #[test]
    fn missing_device_counts_as_zero() {
        let condition: Condition = "ooms > 0".parse().expect("the condition is valid");
        let totals = Some(DeviceTotals { ooms: 2, ..DeviceTotals::default() });
        let evaluation = condition.evaluate(&PerRecording { a: None, b: totals });
        assert!(evaluation.holds);
        assert_eq!(evaluation.values, PerRecording { a: Value::Count(0), b: Value::Count(2) });
        assert_eq!(evaluation.change_text(), "+2");
        assert!(!condition.evaluate(&PerRecording { a: totals, b: None }).holds);
    }
}
