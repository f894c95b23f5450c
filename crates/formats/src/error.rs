//! The error of all readers.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The kind of a [`ReadError`]: a truncated input, a stopped import, or any other problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorKind {
    /// The input is valid as far as it goes, but ends too early.
    Truncated,
    /// The caller has stopped the import.
    Cancelled,
    /// Any other problem.
    Invalid,
}

/// The error of a reader: the problem in the input, and its position.
#[derive(Clone, Debug, thiserror::Error)]
pub struct ReadError {
    /// Position of the problem, in bytes from the start of the input that was passed to the reader.
    pub offset: u64,
    /// Line and column, both from 1, if the input is text.
    pub line_column: Option<(usize, usize)>,
    /// The problem, as a phrase that is complete without the position.
    pub message: String,
    kind: ErrorKind,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl ReadError {
    /// Returns the error for a problem at byte `offset` of the input, without a line or a source.
    pub(crate) fn at(offset: usize, message: impl Into<String>) -> Self {
        Self {
            offset: offset as u64,
            line_column: None,
            message: message.into(),
            kind: ErrorKind::Invalid,
            source: None,
        }
    }

    /// Returns the error for an input that ends too early, after `offset` bytes.
    pub(crate) fn truncated(offset: usize) -> Self {
        Self { kind: ErrorKind::Truncated, ..Self::at(offset, "the file is cut off") }
    }

    /// Returns the error for an import that the caller has stopped.
    pub(crate) fn cancelled() -> Self {
        Self { kind: ErrorKind::Cancelled, ..Self::at(0, "the import was cancelled") }
    }

    /// Adds the line and column of the problem in a text file, both counted from 1.
    pub(crate) fn with_line(self, line: usize, column: usize) -> Self {
        Self { line_column: Some((line, column)), ..self }
    }

    /// Adds the error of the library that could not read the input.
    pub(crate) fn with_source(self, source: impl Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Arc::new(source)), ..self }
    }

    /// Returns true if the input is valid as far as it goes, but ends too early; false for every
    /// other problem, such as an unknown format or damaged data.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.kind == ErrorKind::Truncated
    }

    /// Returns true if the caller's progress function has stopped the import; false for every
    /// problem of the input.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.kind == ErrorKind::Cancelled
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, message, .. } = self;
        match (self.kind, self.line_column) {
            (ErrorKind::Truncated, _) => write!(f, "{message} at byte {offset}: save or copy it again"),
            (ErrorKind::Cancelled, _) => f.write_str(message),
            (_, Some((line, column))) => write!(f, "at byte {offset} (line {line}, column {column}): {message}"),
            (_, None) => write!(f, "at byte {offset}: {message}"),
        }
    }
}
