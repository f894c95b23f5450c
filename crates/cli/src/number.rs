//! Parses numbers on the command line.

use std::str::FromStr;

/// Parses a whole number. The error says that a whole number is expected.
pub(crate) fn parse_whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_in_range_are_accepted() {
        assert_eq!(parse_whole::<u16>("65535"), Ok(65535));
        for text in ["", "65536", "-1", "1.5", "many"] {
            assert_eq!(parse_whole::<u16>(text), Err("expected a whole number".to_owned()), "{text}");
        }
    }
}
