//! How much of a recording is kept.

use std::time::Duration;

/// The least number of bytes that a recording may be held to. Full states come every 16,384 events or so, a program's
/// sites take some bytes themselves, and the window must have room for several states.
const MIN_BYTES: u64 = 1 << 20;

/// How much of a recording a file keeps: everything, or its newest part. That part is a whole recording: what the file
/// said of itself, everything that was ever defined, and all from a full state on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Bytes that the file never has more of, at least 1 MiB; it holds the newest quarter of them or more. It is larger
    /// only where what must be there is: the definitions, and what came since the newest full state.
    pub bytes: Option<u64>,
    /// What is younger than this stays, and no more than twice as much, but for the time since a full state.
    pub time: Option<Duration>,
}

impl Keep {
    /// Whether anything is ever given up.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads a number of bytes: `500M`, `2GiB`, `1048576`. Units are powers of 1024, at least 1 MiB in all.
///
/// # Errors
/// What is wrong with the text, in words.
pub fn parse_keep_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as 500M or 2GiB");
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let shift = match unit.strip_suffix("iB").or(unit.strip_suffix('B')).unwrap_or(unit) {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * (1u64 << shift) as f64;
    // What a double holds exactly; no disk has more.
    if !(0.0..=(1u64 << 53) as f64).contains(&bytes) {
        return Err(wrong());
    }
    let bytes = bytes as u64;
    if bytes < MIN_BYTES {
        Err(format!("{text:?} is less than 1 MiB, the least that a recording fits in"))
    } else {
        Ok(bytes)
    }
}

/// Reads a time: `30s`, `5m`, `1h`; `90` is seconds.
///
/// # Errors
/// What is wrong with the text, in words.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 30s, 5m or 1h");
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let factor = match unit {
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())?;
    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("90", 90.0), ("0.5s", 0.5)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs_f64(seconds)));
        }
        for text in ["", "s", "0s", "-1s", "1d", "1.2.3s", "9999999999999999999999h", "3 s"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in
            [("1048576", 1 << 20), ("500M", 500 << 20), ("2GiB", 2 << 30), ("1.5GB", 3 << 29), ("4096K", 4 << 20)]
        {
            assert_eq!(parse_keep_bytes(text), Ok(bytes));
        }
        for text in ["", "M", "-1M", "2X", "1 M", "1e3", "1048575", "99999999T", "1.2.3M", "10BM"] {
            assert!(parse_keep_bytes(text).is_err(), "{text:?}");
        }
    }
}
