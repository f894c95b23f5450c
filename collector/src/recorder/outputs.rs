//! Where a recording goes, and its totals at the end.

use std::time::Duration;

use super::state::Overflow;
use crate::file::{FileError, RecordingFile};
use crate::hub::Hub;

/// A function that is called once, with the error, when a recording's file cannot be written.
pub type FileErrorCallback = Box<dyn FnOnce(&FileError) + Send>;

/// A recorder's destinations (a file, a hub, both or neither), and what happens when they fail or
/// fall behind.
#[derive(Default)]
pub struct Outputs {
    /// A file or stream. Events reach the operating system within 250 ms.
    pub file: Option<RecordingFile>,
    /// A hub for viewers.
    pub hub: Option<Hub>,
    /// Called once if the file cannot be written. The recording continues for the hub.
    pub on_file_error: Option<FileErrorCallback>,
    /// Whether the program waits or events are dropped when the program is faster than the
    /// recorder.
    pub overflow: Overflow,
    /// True to replace the names of functions, files, scopes, marks and the program by placeholders
    /// such as `function_12`.
    pub redact: bool,
}

/// Totals of a finished recording: numbers of events and lost events, size in bytes, how often the
/// program waited because a queue was full, and the file's error.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of events, including gaps.
    pub events: u64,
    /// Number of dropped events: the sum of all gaps.
    pub lost_events: u64,
    /// Size of the file in bytes, or of the recording if it has no file.
    pub bytes: u64,
    /// Why the file ends before the recording, if it does.
    pub file_error: Option<FileError>,
    /// How often the program waited because a queue was full.
    pub waits: u64,
    /// Total time it waited.
    pub waited: Duration,
}
