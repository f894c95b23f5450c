//! What `verify` and `simulate` read from a recording.

use std::path::Path;

use vramscope_pool::Settings;
use vramscope_pool::rerun::History;
use vramscope_trace::{ByteSize, Recording};

use crate::error::{CommandError, Result};

/// Returns the allocator settings under which a recording was made, with `limit` as the limit of
/// reserved bytes, which is not part of a recording.
pub(crate) fn settings(path: &Path, recording: &Recording, limit: Option<ByteSize>) -> Result<Settings> {
    let conf = &recording.info().alloc_conf;
    let settings = Settings::parse(conf)
        .map_err(|error| CommandError::file(path, format_args!("recorded allocator settings {conf:?}: {error}")))?;
    Ok(Settings { limit_bytes: limit.map(|ByteSize(bytes)| bytes), ..settings })
}

/// Returns the histories (uninterrupted sequences of events) of a recording's devices; a device has
/// several where events are missing.
pub(crate) fn histories(path: &Path, recording: &Recording) -> Result<Vec<History>> {
    History::from_recording(recording).map_err(|error| CommandError::file(path, error))
}
