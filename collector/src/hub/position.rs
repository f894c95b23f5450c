//! Which recording it is, and how much of it somebody has.

use std::fmt;
use std::str::FromStr;

/// Numbers from here on are places in the recording's file, bytes from its beginning. A double holds all of them exactly, and so does
/// a page's script.
const FILE_FROM: u64 = 1 << 52;

/// Tells a recording from every other: 128 random bits, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u128);

impl Identity {
    /// One that no other recording has.
    ///
    /// # Panics
    /// If the operating system gives no random numbers.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
        Self(u128::from_ne_bytes(bytes))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Says that a text is no identity, or no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPosition;

impl fmt::Display for NotAPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a place in a recording is 32 hexadecimal digits, a colon and a number")
    }
}

impl std::error::Error for NotAPosition {}

impl FromStr for Identity {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        bits.map(Self).ok_or(NotAPosition)
    }
}

/// How much of a recording somebody has; shown as `RECORDING:NEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The recording.
    pub recording: Identity,
    /// What comes next: a [`Viewer`](super::Viewer)'s [`next`](super::Viewer::next).
    pub next: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.recording, self.next)
    }
}

impl FromStr for Position {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let (recording, next) = text.split_once(':').ok_or(NotAPosition)?;
        let next = next.parse().ok().filter(|_| next.bytes().all(|byte| byte.is_ascii_digit()));
        Ok(Self { recording: recording.parse()?, next: next.ok_or(NotAPosition)? })
    }
}

/// The number for a place in the file.
pub(super) fn of_file(at: u64) -> u64 {
    FILE_FROM.saturating_add(at)
}

/// The place in the file that a number stands for, if it does.
pub(super) fn in_file(next: u64) -> Option<u64> {
    next.checked_sub(FILE_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_shown() {
        let recording = Identity::random();
        assert_ne!(recording, Identity::random());
        for next in [0, 7, of_file(0), u64::MAX] {
            let position = Position { recording, next };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let digits = "0123456789abcdef0123456789abcdef";
        for text in ["", ":", "1:2", digits, &format!("{digits}:"), &format!("{digits}:+1"), &format!("{digits}0:1")] {
            assert_eq!(text.parse::<Position>(), Err(NotAPosition), "{text}");
        }
        assert_eq!(format!("+{}:1", &digits[1..]).parse::<Position>(), Err(NotAPosition));
        assert_eq!((in_file(of_file(9)), in_file(9)), (Some(9), None));
    }
}
