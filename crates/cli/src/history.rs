//! Reads the lifetimes of all allocations of a recording, with progress.

use std::path::Path;

use vramscope_insight::history::History;
use vramscope_trace::Recording;

use crate::error::{CommandError, Result};
use crate::operation::Operation;

/// Number of events that are read between two updates of the progress bar.
const EVENTS_PER_STEP: u64 = 100_000;

/// Reads the lifetimes of all allocations. `path` is for error messages.
pub(crate) fn read_history(path: &Path, recording: &Recording, operation: &Operation) -> Result<History> {
    let mut history = History::new();
    let bar = operation.stage(format!("Reading {}", path.file_name().unwrap_or_default().to_string_lossy()));
    loop {
        operation.check()?;
        let progress = history.extend(recording, EVENTS_PER_STEP).map_err(|error| CommandError::file(path, error))?;
        bar.set_length(progress.known_events);
        bar.set_position(progress.events);
        if progress.is_complete {
            bar.finish_and_clear();
            return Ok(history);
        }
    }
}
