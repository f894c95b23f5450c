//! Reads the values of terms: sizes, numbers, durations and addresses, and comparisons of them.

use vramscope_trace::ByteSize;

use super::comparison::Comparison;
use crate::comparator::Comparator;

/// Units of a number of events.
const EVENT_UNITS: [&str; 3] = ["ev", "event", "events"];
/// Units of a number of training steps.
const STEP_UNITS: [&str; 2] = ["step", "steps"];

/// Returns true if `text` begins with an operator of a comparison.
pub(super) fn starts_with_operator(text: &str) -> bool {
    text.starts_with('=') || Comparator::split(text).is_some()
}

/// Reads a comparison: an operator and a value, a range of two values, or one value for equality.
/// `value` reads a value; `None` if it or the comparison is invalid.
pub(super) fn comparison(text: &str, value: impl Fn(&str) -> Option<u64>) -> Option<Comparison> {
    let text = text.trim();
    if let Some((comparator, limit)) = Comparator::split(text) {
        return value(limit.trim()).map(|limit| Comparison::Limit(comparator, limit));
    }
    // `=1MiB..4MiB` is a range, too.
    let text = text.strip_prefix('=').unwrap_or(text).trim();
    range(text, &value).or_else(|| value(text).map(Comparison::Equal))
}

/// Reads a range `lowest..highest` of which one end may be missing.
pub(super) fn range(text: &str, value: impl Fn(&str) -> Option<u64>) -> Option<Comparison> {
    let (lowest, highest) = text.split_once("..")?;
    match (lowest.trim(), highest.trim()) {
        ("", "") => None,
        ("", highest) => Some(Comparison::Limit(Comparator::AtMost, value(highest)?)),
        (lowest, "") => Some(Comparison::Limit(Comparator::AtLeast, value(lowest)?)),
        (lowest, highest) => Some(Comparison::Between(value(lowest)?, value(highest)?)),
    }
}

/// Reads a size in bytes, such as `100MiB`; digits may be separated by commas.
pub(super) fn bytes(text: &str) -> Option<u64> {
    text.replace(',', "").parse().ok().map(|ByteSize(bytes)| bytes)
}

/// Reads a count; digits may be separated by commas.
pub(super) fn count(text: &str) -> Option<u64> {
    let is_count = text.starts_with(|first: char| first.is_ascii_digit());
    text.replace(',', "").parse().ok().filter(|_| is_count)
}

/// Reads a hexadecimal number with `0x`, or a decimal one.
pub(super) fn address(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits),
        None => count(text),
    }
}

/// Reads hexadecimal digits without a prefix.
pub(super) fn hexadecimal(digits: &str) -> Option<u64> {
    let is_number = digits.starts_with(|first: char| first.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_number)
}

/// Splits a number from the unit that follows it, for example `1.5` and `ms`.
fn split_unit(text: &str) -> (&str, &str) {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    (number, unit.trim())
}

/// Returns the length of a unit of time in nanoseconds; `None` for any other word.
fn unit_ns(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Returns true if a word is the unit of a duration, of events or of training steps.
pub(super) fn is_span_unit(word: &str) -> bool {
    unit_ns(word).is_some() || EVENT_UNITS.contains(&word) || STEP_UNITS.contains(&word)
}

/// Reads a duration with its unit, such as `1.5ms`, in nanoseconds.
pub(super) fn duration_ns(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text.trim());
    let unit_ns = unit_ns(unit)?;
    let number = number.replace(',', "");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit_ns);
    }
    let ns = number.parse::<f64>().ok()? * unit_ns as f64;
    // Above 2^53 a double no longer holds every integer.
    (0.0..=(1u64 << 53) as f64).contains(&ns).then_some(ns as u64)
}

/// Reads a number of events with its unit, such as `100ev`.
pub(super) fn events(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text.trim());
    count(number).filter(|_| EVENT_UNITS.contains(&unit))
}

/// Reads a number of training steps with its unit, such as `3steps`.
pub(super) fn steps(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text.trim());
    count(number).filter(|_| STEP_UNITS.contains(&unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        assert_eq!(bytes("1,024"), Some(1024));
        assert_eq!(bytes("4.22 GiB"), Some(4_531_190_497));
        assert_eq!((count("12,000"), count("+1"), count(",1"), count("-1")), (Some(12_000), None, None, None));
        assert_eq!((address("0xff"), address("255"), address("ff"), address("0x")), (Some(255), Some(255), None, None));
        let durations = [
            ("10s", Some(10_000_000_000)),
            ("1.5 ms", Some(1_500_000)),
            ("3µs", Some(3_000)),
            ("2min", Some(120_000_000_000)),
            ("10", None),
            ("s", None),
            ("99999999999h", None),
        ];
        for (text, expected) in durations {
            assert_eq!(duration_ns(text), expected, "{text}");
        }
        assert_eq!(
            (events("100ev"), events("1 event"), events("5"), steps("3steps")),
            (Some(100), Some(1), None, Some(3))
        );
    }

    #[test]
    fn comparisons_have_one_or_two_limits() {
        let cases = [
            (">1", Some(Comparison::Limit(Comparator::Above, 1))),
            (">=1", Some(Comparison::Limit(Comparator::AtLeast, 1))),
            ("≤ 1K", Some(Comparison::Limit(Comparator::AtMost, 1024))),
            ("=1..2", Some(Comparison::Between(1, 2))),
            ("1", Some(Comparison::Equal(1))),
            ("1..", Some(Comparison::Limit(Comparator::AtLeast, 1))),
            ("..1", Some(Comparison::Limit(Comparator::AtMost, 1))),
            ("..", None),
            (">1..2", None),
            (">", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(comparison(text, bytes), expected, "{text}");
        }
    }
}
