//! What is measured and shown of live recordings. Each has a short form, which tests run, and a long one, which the program `live` runs.

pub mod chaos;
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

/// How long a viewer may need to be where the program is, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A recording from its file, every chunk checked, and the file's bytes.
fn whole_file(path: &Path) -> Result<(Recording, u64), String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let len = bytes.len() as u64;
    match Recording::read_through(Arc::new(bytes), len, |_, _| {}) {
        Ok((recording, None)) => Ok((recording, len)),
        Ok((_, Some(error))) | Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
