//! The error of reading a query.

use std::ops::Range;

use vramscope_trace::shortened;

/// Maximum length of a term that an error message repeats, in characters.
const MAX_SHOWN_CHARS: usize = 60;

/// An invalid term of a query: its text and position, the reason, and the allowed terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the search term `{term}`: {reason}; use {allowed}")]
pub struct SearchTermError {
    term: String,
    range: Range<usize>,
    reason: String,
    allowed: String,
}

impl SearchTermError {
    /// Creates the error about the part `range` (in bytes) of `query`.
    pub(super) fn new(query: &str, range: Range<usize>, reason: String, allowed: String) -> Self {
        let term = shortened(query.get(range.clone()).unwrap_or_default(), MAX_SHOWN_CHARS);
        Self { term, range, reason, allowed }
    }

    /// Returns the term as it was typed; a long one is shortened.
    #[must_use]
    pub fn term(&self) -> &str {
        &self.term
    }

    /// Returns the byte range of the term in the query.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns why the term cannot be used.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the allowed terms, with an example.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.allowed
    }
}
