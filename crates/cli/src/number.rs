//! Parses numbers on the command line.

use std::str::FromStr;

use vramscope_trace::{ByteSize, ParseByteSizeError};

/// Parses a whole number. The error says that a whole number is expected.
pub(crate) fn parse_whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

/// Parses the memory of a device or a limit of it, such as `40GiB`. A number without a unit that is
/// less than any device has is an error: it is meant in another unit.
pub(crate) fn parse_device_bytes(text: &str) -> Result<ByteSize, String> {
    const LEAST: ByteSize = ByteSize(1 << 20);
    let size: ByteSize = text.parse().map_err(|error: ParseByteSizeError| error.to_string())?;
    if size >= LEAST {
        return Ok(size);
    }
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Err(format!("{size} is less than {LEAST}: do you mean {text}GiB?")),
        false => Err(format!("{size} is less than {LEAST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_device_needs_a_unit() {
        assert_eq!(parse_device_bytes("40GiB"), Ok(ByteSize(40 << 30)));
        assert_eq!(parse_device_bytes("1048576"), Ok(ByteSize(1 << 20)));
        assert_eq!(parse_device_bytes("40"), Err("40 B is less than 1 MiB: do you mean 40GiB?".to_owned()));
        assert_eq!(parse_device_bytes("40KiB"), Err("40 KiB is less than 1 MiB".to_owned()));
        assert!(parse_device_bytes("many").is_err());
    }

    #[test]
    fn only_whole_numbers_in_range_are_accepted() {
        assert_eq!(parse_whole::<u16>("65535"), Ok(65535));
        for text in ["", "65536", "-1", "1.5", "many"] {
            assert_eq!(parse_whole::<u16>(text), Err("expected a whole number".to_owned()), "{text}");
        }
    }
}
