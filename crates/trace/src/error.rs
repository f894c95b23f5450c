//! What is wrong with a recording, and where.

use std::fmt;

/// Bytes that are not a recording, or not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// The offset in the stream of the byte, or of the chunk, that is wrong.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl FormatError {
    pub(crate) fn new(offset: u64, what: impl Into<String>) -> Self {
        Self { offset, what: what.into() }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for FormatError {}
