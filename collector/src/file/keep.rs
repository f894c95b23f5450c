//! How much of a recording a file keeps.

use std::time::Duration;

use vramscope_trace::{ByteSize, ParseByteSizeError};

/// Minimum for [`Keep::bytes`], in bytes: 1 MiB. The file must have room for several full states,
/// which come about every 16,384 events, and for all definitions.
const MIN_BYTES: u64 = 1 << 20;

/// How much of a recording a file keeps: everything (the default) or the newest part.
///
/// The newest part is a valid recording: header, all definitions, and everything from a full state
/// on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Maximum size of the file in bytes, at least 1 MiB. The file keeps at least the newest
    /// quarter of this size. The file exceeds the maximum only if the definitions and the events
    /// since the newest full state need more.
    pub bytes: Option<u64>,
    /// Duration of the part to keep. The file may keep up to twice this duration, plus the time
    /// between two full states.
    pub time: Option<Duration>,
}

impl Keep {
    /// Returns true if the file keeps the whole recording, false if older parts are removed.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Error for text that is not a size of at least 1 MiB; see [`parse_keep_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseKeepBytesError {
    /// The text is not a size.
    #[error("{text:?}: {source}")]
    Invalid {
        /// The given text.
        text: String,
        /// The error of parsing the text, which says how a size is written.
        source: ParseByteSizeError,
    },
    /// The size is too small for a recording.
    #[error("{text:?} is less than {}, the minimum size of a recording", ByteSize(MIN_BYTES))]
    TooSmall {
        /// The given text.
        text: String,
    },
}

/// Error for text that is not a positive duration; see [`parse_time`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: use a number with a unit, such as 30s, 5m or 1h")]
pub struct ParseTimeError {
    text: String,
}

/// Parses a size for [`Keep::bytes`], such as `500M`, `2GiB` or a number of bytes.
///
/// # Errors
/// If the text is not a size of at least 1 MiB. The error says what is expected.
pub fn parse_keep_bytes(text: &str) -> Result<u64, ParseKeepBytesError> {
    let ByteSize(bytes) =
        text.parse().map_err(|source| ParseKeepBytesError::Invalid { text: text.to_owned(), source })?;
    if bytes < MIN_BYTES {
        return Err(ParseKeepBytesError::TooSmall { text: text.to_owned() });
    }
    Ok(bytes)
}

/// Parses a duration for [`Keep::time`], such as `30s`, `5m`, `1h` or a number of seconds.
///
/// # Errors
/// If the text is not a positive duration. The error says what is expected.
pub fn parse_time(text: &str) -> Result<Duration, ParseTimeError> {
    let invalid = || ParseTimeError { text: text.to_owned() };
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let factor = match unit {
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(invalid()),
    };
    let number: f64 = digits.parse().map_err(|_| invalid())?;
    let duration = Duration::try_from_secs_f64(number * factor).map_err(|_| invalid())?;
    if duration.is_zero() { Err(invalid()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, seconds) in [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("90", 90.0), ("0.5s", 0.5)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs_f64(seconds)));
        }
        for text in ["", "s", "0s", "-1s", "1d", "1.2.3s", "9999999999999999999999h", "3 s"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
        let error = parse_time("1d").expect_err("not a unit").to_string();
        assert_eq!(error, "\"1d\" is not a duration: use a number with a unit, such as 30s, 5m or 1h");
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("1 M", 1 << 20),
            ("500M", 500 << 20),
            ("2GiB", 2 << 30),
            ("1.5GB", 3 << 29),
            ("4096K", 4 << 20),
        ] {
            assert_eq!(parse_keep_bytes(text), Ok(bytes));
        }
        for text in ["", "M", "-1M", "2X", "1 X", "1e3", "1048575", "99999999T", "1.2.3M", "10BM"] {
            assert!(parse_keep_bytes(text).is_err(), "{text:?}");
        }
        let error = parse_keep_bytes("1000").expect_err("too small").to_string();
        assert_eq!(error, "\"1000\" is less than 1 MiB, the minimum size of a recording");
        let error = parse_keep_bytes("much").expect_err("not a size");
        assert!(error.source().is_some_and(|source| error.to_string() == format!("\"much\": {source}")), "{error}");
    }
}
