//! The error of reading events.

use std::ops::Range;

use vramscope_trace::{FormatError, Recording};

/// Events that cannot be read: they are not loaded yet, or their chunk is damaged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EventListError {
    /// The recording was opened by its index, and these byte ranges of it are not in memory:
    /// [`supply`](Recording::supply) them and call again.
    #[error("{} of the recording are not loaded yet", ranges_text(.missing))]
    NotLoaded {
        /// The byte ranges, each one chunk.
        missing: Vec<Range<u64>>,
    },
    /// A chunk cannot be read.
    #[error(transparent)]
    Damaged(#[from] FormatError),
}

/// The result of reading events.
pub(super) type Result<T = (), E = EventListError> = std::result::Result<T, E>;

impl EventListError {
    /// Creates the error for events with indexes from `first` to `last` (from 0), which could not
    /// be read because of `error`.
    pub(super) fn reading(recording: &Recording, first: u64, last: u64, error: FormatError) -> Self {
        let missing = recording.missing_between(first, last);
        if missing.is_empty() { Self::Damaged(error) } else { Self::NotLoaded { missing } }
    }
}

/// Returns how many byte ranges there are, for the error message.
fn ranges_text(ranges: &[Range<u64>]) -> String {
    match ranges.len() {
        1 => "1 byte range".to_owned(),
        count => format!("{count} byte ranges"),
    }
}
