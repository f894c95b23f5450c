//! The names of two compared recordings.

use std::fmt;

/// One of two compared recordings: A, or B, whose changes relative to A are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingLabel {
    /// The first recording.
    A,
    /// The second recording.
    B,
}

impl fmt::Display for RecordingLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}
