//! Numbers as people read them.

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size to three or four digits: `4.22 GiB`, `512 B`, `1023 KiB`.
#[must_use]
pub fn bytes(value: u64) -> String {
    let mut unit = 0;
    let mut scaled = value as f64;
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let decimals = match scaled {
        _ if unit == 0 || scaled.fract() == 0.0 => 0,
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {}", UNITS[unit])
}

/// A whole number with its thousands set apart: `44,854`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The whole number that a person has typed, with or without its thousands set apart; the greatest there is for one that is greater.
#[must_use]
pub fn typed_count(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|letter| !letter.is_whitespace() && !",_'’".contains(*letter)).collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// A size to the byte: `1,048,576 B`. No line is broken before the unit.
#[must_use]
pub fn exact_bytes(value: u64) -> String {
    count(value) + "\u{a0}B"
}

/// A size both ways: `1 MiB · 1,048,576 B`. A line may be broken between the two only.
#[must_use]
pub fn both_bytes(value: u64) -> String {
    if value < 1024 {
        return exact_bytes(value);
    }
    format!("{} · {}", bytes(value).replace(' ', "\u{a0}"), exact_bytes(value))
}

/// An address: `0x7f1a2c000000`.
#[must_use]
pub fn address(value: u64) -> String {
    format!("{value:#x}")
}

/// A share between 0 and 1 in percent, to one decimal.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// A length of time in the unit that suits it: `4.63 s`, `12.4 ms`, `850 ns`.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (scaled, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        1_000_000_000..120_000_000_000 => (ns as f64 / 1e9, "s"),
        _ => {
            let seconds = ns / 1_000_000_000;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            return if hours > 0 {
                format!("{hours} h {minutes:02} min")
            } else {
                format!("{minutes} min {seconds:02} s")
            };
        }
    };
    let decimals = if scaled < 9.995 {
        2
    } else if scaled < 99.95 {
        1
    } else {
        0
    };
    format!("{scaled:.decimals$} {unit}")
}

/// A moment of a recording that is `end_ns` long: `3.215403 s`, or `6.438 ms` where it is shorter than a second.
#[must_use]
pub fn moment(ns: u64, end_ns: u64) -> String {
    if end_ns < 1_000_000_000 {
        format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000)
    } else {
        format!("{}.{:06} s", count(ns / 1_000_000_000), ns / 1_000 % 1_000_000)
    }
}

/// A size on an axis: as [`bytes`], without zeros behind the point.
#[must_use]
pub fn axis_bytes(value: u64) -> String {
    let text = bytes(value);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// A moment on an axis that ends at `end_ns` and has labels every `step_ns`: in the unit that suits the end, with as many decimals as
/// the step needs.
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
        0 => format!("{} {unit}", count(whole)),
        _ => format!("{}.{rest:0decimals$} {unit}", count(whole)),
    }
}

/// The step of 1, 2 or 5 times a power of ten that gives at most `most` steps in `range`.
#[must_use]
pub fn decimal_step(range: u64, most: u64) -> u64 {
    let least = range.div_ceil(most.max(1)).max(1);
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

/// The power of two that gives at most `most` steps in `range`.
#[must_use]
pub fn binary_step(range: u64, most: u64) -> u64 {
    range.div_ceil(most.max(1)).max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let check = |value: u64, expected: &str| assert_eq!(bytes(value), expected);
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
    fn counts_and_addresses() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(44_854), "44,854");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(address(0x7f1a_2c00_0000), "0x7f1a2c000000");
        assert_eq!(both_bytes(2 << 20), "2\u{a0}MiB · 2,097,152\u{a0}B");
        assert_eq!(both_bytes(512), "512\u{a0}B");
    }

    #[test]
    fn typed_numbers_are_taken_whole_or_not_at_all() {
        for (text, expected) in [("37", 37), (" 7,771 ", 7_771), ("1 000_000", 1_000_000), ("44’854", 44_854)] {
            assert_eq!(typed_count(text), Some(expected), "{text}");
        }
        assert_eq!(typed_count("99999999999999999999999"), Some(u64::MAX));
        for nonsense in ["", " ", "abc", "-5", "12.5", "1e3", "0x10", ",", "٣"] {
            assert_eq!(typed_count(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn times_read_well() {
        let check = |ns: u64, expected: &str| assert_eq!(duration(ns), expected);
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
        assert_eq!(axis_bytes(5 << 29), "2.5 GiB");
        assert_eq!(axis_bytes(640 << 20), "640 MiB");
    }

    #[test]
    fn steps_are_round_and_few() {
        assert_eq!(decimal_step(4_634_107_000, 10), 500_000_000);
        assert_eq!(binary_step(8 << 30, 4), 2 << 30);
        for range in [0, 1, 7, 1 << 40, u64::MAX] {
            for most in [0, 1, 5, 12] {
                assert!(range / decimal_step(range, most) <= most.max(1));
                assert!(range / binary_step(range, most) <= most.max(1));
            }
        }
    }
}
