//! Numbers for people.

use std::time::Duration;

/// `12,345,678`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12,345 events`, `1 event`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// `1.5 GiB`; three digits and more, as much as a person compares.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    let value = bytes as f64 / 1024f64.powi(unit as i32);
    let decimals = if unit == 0 { 0 } else { 2 };
    format!("{value:.decimals$} {}", UNITS[unit as usize])
}

/// `1.5 s`, `250 ms`, `3 min 20 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_secs() {
        0 if duration < Duration::from_millis(1) => format!("{:.1} \u{b5}s", seconds * 1e6),
        0 => format!("{:.1} ms", seconds * 1e3),
        1..60 => format!("{seconds:.2} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "event", "events"), "1 event");
        assert_eq!(counted(0, "event", "events"), "0 events");
    }

    #[test]
    fn bytes_have_the_largest_unit_that_fits() {
        for (number, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB"), (u64::MAX, "16.00 EiB")]
        {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn durations_have_the_units_of_people() {
        for (seconds, text) in [
            (0.000_25, "250.0 \u{b5}s"),
            (0.25, "250.0 ms"),
            (1.5, "1.50 s"),
            (200.0, "3 min 20 s"),
            (7260.0, "2 h 1 min"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
