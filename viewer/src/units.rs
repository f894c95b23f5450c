//! Numbers as text: addresses, times on an axis, and numbers that a user typed.
//!
//! Sizes, counts, percentages and durations are formatted by [`ByteSize`], [`Count`],
//! [`Percent`](vramscope_trace::Percent) and [`DurationNs`](vramscope_trace::DurationNs).

use vramscope_trace::{ByteSize, Count};

/// Formats a size with a no-break space before the unit, so that no line breaks there: `20 MiB`.
pub fn unbroken_size(bytes: u64) -> String {
    ByteSize(bytes).to_string().replace(' ', "\u{a0}")
}

/// Formats a size exactly, in bytes, with a no-break space: `1,048,576 B`.
pub fn exact_size(bytes: u64) -> String {
    format!("{}\u{a0}B", Count(bytes))
}

/// Formats a size rounded and exactly: `1 MiB · 1,048,576 B`. Lines break only between the two.
pub fn rounded_and_exact_size(bytes: u64) -> String {
    if bytes < 1024 {
        return exact_size(bytes);
    }
    format!("{} · {}", unbroken_size(bytes), exact_size(bytes))
}

/// Parses a whole number that a user typed, with or without thousands separators.
///
/// A number above `u64::MAX` becomes `u64::MAX`; `None` means that the text is not a number.
pub fn parse_count(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && !",_'’".contains(*c)).collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Returns an address in hexadecimal: `0x7f1a2c000000`.
pub fn address(value: u64) -> String {
    format!("{value:#x}")
}

/// Formats a time since the start of a recording that is `end_ns` long: `3.215403 s`, or `6.438 ms`
/// in a recording shorter than a second.
pub fn moment(ns: u64, end_ns: u64) -> String {
    if end_ns < 1_000_000_000 {
        format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000)
    } else {
        format!("{}.{:06} s", Count(ns / 1_000_000_000), ns / 1_000 % 1_000_000)
    }
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
    }
}
