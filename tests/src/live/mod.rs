//! Measurements of live recordings. Tests run each briefly; the program `live` at full length.

pub mod chaos;
pub mod demo;
pub mod page;
pub mod push;
mod recorder;
pub mod slow;
pub mod soak;
pub mod throughput;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vramscope_trace::Recording;

/// Longest time for a viewer to catch up, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Reads a recording from a file, checking every chunk. Returns it with the file's size.
fn read_complete_file(path: &Path) -> Result<(Recording, u64), String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let len = bytes.len() as u64;
    match Recording::read_through(Arc::new(bytes), len, |_, _| {}) {
        Ok((recording, None)) => Ok((recording, len)),
        Ok((_, Some(error))) | Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
