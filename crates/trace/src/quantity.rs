//! Sizes, counts, percentages and durations as text.
//!
//! Commands, the page, reports and messages format every size, count and percentage with this
//! module, so that all of them look alike.

use std::fmt;
use std::str::FromStr;

/// Names of the binary units of bytes; each unit is 1,024 times the unit before it.
const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Returns the number of decimals with which three digits of `number` (at least 1) are shown.
fn decimals(number: f64) -> usize {
    usize::from(number < 9.995) + usize::from(number < 99.95)
}

/// A number of bytes that is displayed with a binary unit and parsed from text such as `40GiB`.
///
/// Three significant digits are shown, without decimals for whole values: `512 B`, `20 MiB`, `4.22
/// GiB`. Parsing takes bytes or a number with a unit. `K`, `KB` and `KiB` all mean 1,024 bytes, as
/// in PyTorch's settings; M, G and T work alike.
///
/// ```
/// use vramscope_trace::ByteSize;
///
/// assert_eq!("1.5GiB".parse(), Ok(ByteSize(3 << 29)));
/// assert_eq!(ByteSize(3 << 29).to_string(), "1.50 GiB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        let mut scaled = self.0 as f64;
        while scaled >= 1023.95 && unit + 1 < UNITS.len() {
            scaled /= 1024.0;
            unit += 1;
        }
        let decimals = if unit == 0 || scaled.fract() == 0.0 { 0 } else { decimals(scaled) };
        f.pad(&format!("{scaled:.decimals$} {}", UNITS[unit]))
    }
}

/// The error of parsing a [`ByteSize`]: the text is not a number of bytes or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected bytes or a size such as 5GiB")]
pub struct ParseByteSizeError;

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let unit = unit.trim_start();
        let shift = match unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit) {
            "" if unit != "iB" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(ParseByteSizeError),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Self).ok_or(ParseByteSizeError);
        }
        let fraction: f64 = number.parse().map_err(|_| ParseByteSizeError)?;
        let bytes = fraction * (1u64 << shift) as f64;
        // Above 2^53 a double no longer holds every integer.
        if shift > 0 && (0.0..=(1u64 << 53) as f64).contains(&bytes) {
            Ok(Self(bytes as u64))
        } else {
            Err(ParseByteSizeError)
        }
    }
}

/// A count that is displayed with its thousands separated: `44,854`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(pub u64);

impl Count {
    /// Returns the count followed by its noun: `singular` for 1, else `plural`, as in `44,854
    /// events`.
    #[must_use]
    pub fn of(self, singular: &str, plural: &str) -> String {
        format!("{self} {}", if self.0 == 1 { singular } else { plural })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// A share of a whole, 1.0 being all of it, that is displayed as a percentage with one decimal:
/// `65.6%`.
///
/// ```
/// use vramscope_trace::Percent;
///
/// assert_eq!(Percent(0.656).to_string(), "65.6%");
/// assert_eq!(Percent::of(1, 4).to_string(), "25.0%");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Percent(pub f64);

impl Percent {
    /// Returns the share that `part` is of `whole`; `0.0%` if `whole` is 0.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Self {
        Self(if whole == 0 { 0.0 } else { part as f64 / whole as f64 })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1}%", self.0 * 100.0))
    }
}

/// A duration in nanoseconds that is displayed in a fitting unit: `850 ns`, `12.4 ms`, `2 min 05
/// s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DurationNs(pub u64);

impl fmt::Display for DurationNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        let (scaled, unit) = match ns {
            0..1_000 => return f.pad(&format!("{ns} ns")),
            1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
            1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
            1_000_000_000..120_000_000_000 => (ns as f64 / 1e9, "s"),
            _ => {
                let seconds = ns / 1_000_000_000;
                let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
                return f.pad(&if hours > 0 {
                    format!("{hours} h {minutes:02} min")
                } else {
                    format!("{minutes} min {seconds:02} s")
                });
            }
        };
        f.pad(&format!("{scaled:.*} {unit}", decimals(scaled)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_show_three_significant_digits() {
        let cases = [
            (0, "0 B"),
            (512, "512 B"),
            (1_048_576, "1 MiB"),
            (1_048_575, "1.00 MiB"),
            (20 << 20, "20 MiB"),
            (4_529_848_320, "4.22 GiB"),
            (1000 << 20, "1000 MiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", ByteSize(512)), "   512 B");
    }

    #[test]
    fn sizes_parse_with_and_without_units() {
        let cases = [
            ("0", 0),
            ("512", 512),
            ("40GiB", 40 << 30),
            ("500M", 500 << 20),
            ("1.5 GiB", 3 << 29),
            ("2KB", 2048),
            ("1T", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "iB", "5X", "-1", "1.5", "1e3", "5 G B", "18446744073709551616", "99999999T"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ParseByteSizeError), "{text:?}");
        }
    }

    #[test]
    fn counts_have_separated_thousands() {
        for (count, text) in [(0, "0"), (999, "999"), (44_854, "44,854"), (1_000_000, "1,000,000")] {
            assert_eq!(Count(count).to_string(), text);
        }
        assert_eq!(Count(1).of("event", "events"), "1 event");
        assert_eq!(Count(0).of("event", "events"), "0 events");
    }

    #[test]
    fn percentages_have_one_decimal_and_no_space() {
        for (share, text) in [(0.0, "0.0%"), (0.656, "65.6%"), (1.0, "100.0%"), (-0.0039, "-0.4%")] {
            assert_eq!(Percent(share).to_string(), text);
        }
        assert_eq!((Percent::of(1, 3).to_string().as_str(), Percent::of(5, 0)), ("33.3%", Percent(0.0)));
        assert_eq!(format!("{:>8}", Percent(0.5)), "   50.0%");
    }

    #[test]
    fn durations_have_a_fitting_unit() {
        let cases = [
            (850, "850 ns"),
            (12_400, "12.4 µs"),
            (4_634_107_000, "4.63 s"),
            (125_000_000_000, "2 min 05 s"),
            (7_260_000_000_000, "2 h 01 min"),
        ];
        for (ns, text) in cases {
            assert_eq!(DurationNs(ns).to_string(), text);
        }
    }
}
