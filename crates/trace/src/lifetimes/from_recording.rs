//! Builds the lifetimes of a whole recording.

use super::lifetime_index::Lifetimes;
use super::reader::LifetimesReader;
use crate::error::FormatError;
use crate::recording::Recording;

impl Lifetimes {
    /// Builds the index of all allocations of a recording, in one pass over its events;
    /// [`LifetimesReader`] builds it in steps.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn from_recording(recording: &Recording) -> Result<Self, FormatError> {
        let mut reader = LifetimesReader::new();
        while !reader.is_at_end(recording) {
            reader.step(recording, u64::MAX, |_, _, _| {})?;
            if let Some(range) = reader.missing(recording, 1).first() {
                return Err(FormatError::new(range.start, "this chunk has not been loaded yet"));
            }
        }
        Ok(reader.finish())
    }
}
