//! What is wrong with an input, and where.

use std::fmt;

/// Why bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// Where: bytes from the start of what was read (of the unpacked bytes, where the input was packed).
    pub offset: u64,
    /// Line and column, both from 1, where the input is text.
    pub place: Option<(usize, usize)>,
    /// What, in words that follow on nothing.
    pub what: String,
}

impl ReadError {
    pub(crate) fn at(offset: usize, what: impl Into<String>) -> Self {
        Self { offset: offset as u64, place: None, what: what.into() }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => {
                write!(f, "at byte {} (line {line}, column {column}): {}", self.offset, self.what)
            }
            None => write!(f, "at byte {}: {}", self.offset, self.what),
        }
    }
}

impl std::error::Error for ReadError {}
