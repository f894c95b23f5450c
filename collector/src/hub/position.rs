//! Positions in a recording, by which a client resumes.

use std::fmt;
use std::str::FromStr;

/// The value of [`StreamPosition::next`] that means byte 0 of the recording's file; larger values
/// mean byte `next - FILE_FROM`, smaller ones are chunk numbers. JavaScript numbers hold all of
/// them exactly.
const FILE_FROM: u64 = 1 << 52;

/// Identity of a recording: 128 random bits, displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordingIdentity(u128);

impl RecordingIdentity {
    /// Creates a new identity from 128 random bits.
    ///
    /// # Panics
    /// If the operating system provides no random numbers.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
        Self(u128::from_ne_bytes(bytes))
    }
}

impl fmt::Display for RecordingIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Error for text that is not a valid [`StreamPosition`] or [`RecordingIdentity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position is a recording's identity (32 hexadecimal digits), a colon and a number")]
pub struct InvalidPosition;

impl FromStr for RecordingIdentity {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        bits.map(Self).ok_or(InvalidPosition)
    }
}

/// Where in a live recording a new viewer begins: at the newest full state, somewhat earlier, or at
/// the oldest event available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViewFrom {
    /// At the newest full state.
    #[default]
    Newest,
    /// At the oldest full state that is at most this many bytes before the end, or with all of the
    /// history if it is smaller.
    Recent(u64),
    /// At the recording's first event if it is written to a file, otherwise with all of the
    /// history.
    Oldest,
}

/// How far a client has read a live recording, from which it can resume; displayed as
/// `RECORDING:NEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// Identity of the recording.
    pub recording: RecordingIdentity,
    /// Number of the next chunk, or a place in the recording's file, from
    /// [`Viewer::next`](super::Viewer::next).
    pub next: u64,
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.recording, self.next)
    }
}

impl FromStr for StreamPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let (recording, next) = text.split_once(':').ok_or(InvalidPosition)?;
        let next = next.parse().ok().filter(|_| next.bytes().all(|byte| byte.is_ascii_digit()));
        Ok(Self { recording: recording.parse()?, next: next.ok_or(InvalidPosition)? })
    }
}

/// Returns the [`StreamPosition::next`] that stands for byte offset `at` in the recording's file.
pub(super) fn from_file_offset(at: u64) -> u64 {
    FILE_FROM.saturating_add(at)
}

/// Returns the byte offset in the recording's file that `next` stands for, or `None` if `next` is a
/// chunk number.
pub(super) fn to_file_offset(next: u64) -> Option<u64> {
    next.checked_sub(FILE_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_parsed_as_displayed() {
        let recording = RecordingIdentity::random();
        assert_ne!(recording, RecordingIdentity::random());
        for next in [0, 7, from_file_offset(0), u64::MAX] {
            let position = StreamPosition { recording, next };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let digits = "0123456789abcdef0123456789abcdef";
        for text in ["", ":", "1:2", digits, &format!("{digits}:"), &format!("{digits}:+1"), &format!("{digits}0:1")] {
            assert_eq!(text.parse::<StreamPosition>(), Err(InvalidPosition), "{text}");
        }
        assert_eq!(format!("+{}:1", &digits[1..]).parse::<StreamPosition>(), Err(InvalidPosition));
        assert_eq!((to_file_offset(from_file_offset(9)), to_file_offset(9)), (Some(9), None));
    }
}
