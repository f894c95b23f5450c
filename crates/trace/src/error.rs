//! The error of everything that reads a recording.

use std::io;
use std::sync::Arc;

/// Bytes that are not a valid recording, or that could not be read, and where.
///
/// Displays as `at byte 4096: the chunk's checksum does not match`. When reading the bytes failed,
/// or the header chunk is not valid JSON, [`source`](std::error::Error::source) returns the cause
/// and the reason contains its text. Two errors are equal if offset and reason are.
#[derive(Clone, Debug, thiserror::Error)]
#[error("at byte {offset}: {reason}")]
pub struct FormatError {
    /// Byte offset in the recording of the invalid byte, or of the chunk that contains it.
    pub offset: u64,
    /// The reason for the error, as part of a sentence for users.
    pub reason: String,
    #[source]
    cause: Option<Arc<io::Error>>,
}

impl FormatError {
    /// Creates an error at byte `offset` of the recording with the message `reason`, without a
    /// cause.
    pub fn new(offset: u64, reason: impl Into<String>) -> Self {
        Self { offset, reason: reason.into(), cause: None }
    }

    /// Creates the error for the bytes at `offset` of the recording, which could not be read
    /// because of `cause`.
    #[must_use]
    pub fn read_failed(offset: u64, cause: io::Error) -> Self {
        Self::caused_by(offset, format!("cannot read the recording: {cause}"), cause)
    }

    /// Creates an error at byte `offset` of the recording with the message `reason`;
    /// [`source`](std::error::Error::source) returns `cause`.
    pub(crate) fn caused_by(offset: u64, reason: String, cause: io::Error) -> Self {
        Self { offset, reason, cause: Some(Arc::new(cause)) }
    }
}

impl PartialEq for FormatError {
    fn eq(&self, other: &Self) -> bool {
        (self.offset, &self.reason) == (other.offset, &other.reason)
    }
}

impl Eq for FormatError {}
