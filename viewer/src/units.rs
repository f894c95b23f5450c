//! Numbers as text: addresses, times on an axis, and numbers that a user typed.
//!
//! Sizes, counts, percentages and durations are formatted by [`ByteSize`], [`Count`],
//! [`Percent`](vramscope_trace::Percent) and [`DurationNs`](vramscope_trace::DurationNs).

use vramscope_trace::{ByteSize, Count};

/// Formats a size with a no-break space before the unit, so that no line breaks there: `20 MiB`.
#[must_use]
pub fn unbroken_size(bytes: u64) -> String {
    ByteSize(bytes).to_string().replace(' ', "\u{a0}")
}

/// Formats a size exactly, in bytes, with a no-break space: `1,048,576 B`.
#[must_use]
pub fn exact_size(bytes: u64) -> String {
    format!("{}\u{a0}B", Count(bytes))
}

/// Formats a size rounded and exactly: `1 MiB · 1,048,576 B`. Lines break only between the two.
#[must_use]
pub fn rounded_and_exact_size(bytes: u64) -> String {
    if bytes < 1024 {
        return exact_size(bytes);
    }
    format!("{} · {}", unbroken_size(bytes), exact_size(bytes))
}

/// Parses a whole number that a user typed, with or without thousands separators.
///
/// A number above `u64::MAX` becomes `u64::MAX`; `None` means that the text is not a number.
#[must_use]
pub fn parse_count(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && !",_'’".contains(*c)).collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Returns an address in hexadecimal: `0x7f1a2c000000`.
#[must_use]
pub fn address(value: u64) -> String {
    format!("{value:#x}")
}

/// Formats a time since the start of a recording that is `end_ns` long: `3.215403 s`, or `6.438 ms`
/// in a recording shorter than a second.
#[must_use]
pub fn moment(ns: u64, end_ns: u64) -> String {
    if end_ns < 1_000_000_000 {
        format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000)
    } else {
        format!("{}.{:06} s", Count(ns / 1_000_000_000), ns / 1_000 % 1_000_000)
    }
}

/// Returns a size for an axis label: as [`ByteSize`], without trailing zeros after the point.
#[must_use]
pub fn axis_size(bytes: u64) -> String {
    let text = ByteSize(bytes).to_string();
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Returns a time for a label of an axis that ends at `end_ns` and has a label every `step_ns`.
///
/// `end_ns` determines the unit, and `step_ns` the number of decimals.
#[must_use]
pub fn axis_moment(ns: u64, step_ns: u64, end_ns: u64) -> String {
    let (unit_ns, unit) = match end_ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (mut decimals, mut digit_ns) = (0, unit_ns);
    while digit_ns > 1 && !step_ns.is_multiple_of(digit_ns) {
        digit_ns /= 10;
        decimals += 1;
    }
    let (whole, rest) = (ns / unit_ns, ns % unit_ns / digit_ns);
    match decimals {
        0 => format!("{} {unit}", Count(whole)),
        _ => format!("{}.{rest:0decimals$} {unit}", Count(whole)),
    }
}

/// Returns the smallest step of 1, 2 or 5 times a power of ten that fits at most `max_steps` times
/// into `range`.
#[must_use]
pub fn decimal_step(range: u64, max_steps: u64) -> u64 {
    let least = range.div_ceil(max_steps.max(1)).max(1);
    let mut power = 1u64;
    loop {
        for times in [1, 2, 5] {
            let step = power.saturating_mul(times);
            if step >= least || step == u64::MAX {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Returns the smallest power of two that fits at most `max_steps` times into `range`.
#[must_use]
pub fn binary_step(range: u64, max_steps: u64) -> u64 {
    range.div_ceil(max_steps.max(1)).max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

#[cfg(test)]
mod tests {
    use vramscope_trace::DurationNs;

    use super::*;

    #[test]
    fn sizes_have_three_significant_digits() {
        let check = |value: u64, expected: &str| assert_eq!(unbroken_size(value).replace('\u{a0}', " "), expected);
        check(0, "0 B");
        check(512, "512 B");
        check(1_048_576, "1 MiB");
        check(1_048_575, "1.00 MiB");
        check(20 << 20, "20 MiB");
        check(4_529_848_320, "4.22 GiB");
        check(1000 << 20, "1000 MiB");
        check(u64::MAX, "16 EiB");
    }

    #[test]
    fn exact_sizes_and_addresses_are_formatted() {
        assert_eq!(exact_size(0), "0\u{a0}B");
        assert_eq!(exact_size(999), "999\u{a0}B");
        assert_eq!(exact_size(44_854), "44,854\u{a0}B");
        assert_eq!(exact_size(u64::MAX), "18,446,744,073,709,551,615\u{a0}B");
        assert_eq!(address(0x7f1a_2c00_0000), "0x7f1a2c000000");
        assert_eq!(rounded_and_exact_size(2 << 20), "2\u{a0}MiB · 2,097,152\u{a0}B");
        assert_eq!(rounded_and_exact_size(512), "512\u{a0}B");
    }

    #[test]
    fn typed_numbers_are_parsed_whole_or_refused() {
        for (text, expected) in [("37", 37), (" 7,771 ", 7_771), ("1 000_000", 1_000_000), ("44’854", 44_854)] {
            assert_eq!(parse_count(text), Some(expected), "{text}");
        }
        assert_eq!(parse_count("99999999999999999999999"), Some(u64::MAX));
        for text in ["", " ", "abc", "-5", "12.5", "1e3", "0x10", ",", "٣"] {
            assert_eq!(parse_count(text), None, "{text}");
        }
    }

    #[test]
    fn durations_and_moments_have_a_fitting_unit() {
        let check = |ns: u64, expected: &str| assert_eq!(DurationNs(ns).to_string(), expected);
        check(850, "850 ns");
        check(12_400, "12.4 µs");
        check(4_634_107_000, "4.63 s");
        check(125_000_000_000, "2 min 05 s");
        check(7_260_000_000_000, "2 h 01 min");
        assert_eq!(moment(3_215_403_999, 4_000_000_000), "3.215403 s");
        assert_eq!(moment(6_438_999, 9_000_000), "6.438 ms");
        assert_eq!(axis_moment(3_500_000_000, 500_000_000, 4_000_000_000), "3.5 s");
        assert_eq!(axis_moment(3_000_000_000, 1_000_000_000, 4_000_000_000), "3 s");
        assert_eq!(axis_moment(1_000_020, 20, 1_000_100), "1.00002 ms");
        assert_eq!(axis_moment(12_000_000, 2_000_000, 31_000_000), "12 ms");
        assert_eq!(axis_size(5 << 29), "2.5 GiB");
        assert_eq!(axis_size(640 << 20), "640 MiB");
    }

    #[test]
    fn axis_steps_are_round_and_few() {
        assert_eq!(decimal_step(4_634_107_000, 10), 500_000_000);
        assert_eq!(binary_step(8 << 30, 4), 2 << 30);
        for range in [0, 1, 7, 1 << 40, u64::MAX] {
            for max_steps in [0, 1, 5, 12] {
                assert!(range / decimal_step(range, max_steps) <= max_steps.max(1));
                assert!(range / binary_step(range, max_steps) <= max_steps.max(1));
            }
        }
    }
}
