//! Arguments of several commands, and the values that they read from a recording before they
//! simulate it.

use std::path::{Path, PathBuf};

use clap::Args;
use vramscope_pool::rerun::History;
use vramscope_pool::{RecordedConf, Settings};
use vramscope_trace::{ByteSize, DeviceInfo, Recording};

use crate::error::{CommandError, Result};
use crate::number::parse_device_bytes;
use crate::terminal;

/// Arguments of the commands that look for problems in a recording, `autopsy` and `diagnose`.
#[derive(Args, Debug)]
pub(crate) struct FindingsArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Memory limit that the recorded process ran under, such as 40GiB [default: inferred from the
    /// out-of-memory errors]
    #[arg(long, value_name = "SIZE", value_parser = parse_device_bytes)]
    pub(crate) limit_bytes: Option<ByteSize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Returns the allocator settings under which a recording was made. `limit`, the allocator's limit
/// of reserved bytes, is not part of a recording. `path` is for messages. Prints on stderr which
/// settings were skipped or are not followed; fails for another allocator.
pub(crate) fn settings(path: &Path, recording: &Recording, limit: Option<ByteSize>) -> Result<Settings> {
    let conf = &recording.info().alloc_conf;
    let recorded = RecordedConf::parse(conf);
    if let Some(error) = recorded.other_backend {
        return Err(CommandError::file(path, format_args!("recorded allocator settings {conf:?}: {error}")));
    }
    for note in recorded.notes() {
        terminal::message(format_args!("{}: {note}", path.display()));
    }
    if let Some(limit) = limit {
        let peaks = recording.devices().filter_map(|device| recording.series(device));
        let reserved = peaks.map(|series| series.peak_reserved().bytes).max().unwrap_or(0);
        if limit.0 < reserved {
            let reserved = ByteSize(reserved);
            let message = format_args!("--limit-bytes {limit} is less than the {reserved} that the process reserved");
            return Err(CommandError::file(path, message));
        }
    }
    Ok(Settings { limit_bytes: limit.map(|ByteSize(bytes)| bytes), ..recorded.settings })
}

/// Fails if the requests of no GPU of the recording can be run again, or if `needs_sizes` is true
/// and no GPU has requested sizes: a trace of the profiler lacks them, and often the segments.
/// `path` is for error messages.
pub(crate) fn check_requests(path: &Path, recording: &Recording, needs_sizes: bool) -> Result {
    const REMEDY: &str = "record a memory snapshot, torch.cuda.memory._record_memory_history()";
    let info = recording.info();
    let gpus = recording.devices().filter(|id| id.is_gpu());
    let described: Vec<Option<&DeviceInfo>> = gpus.map(|id| info.device(id)).collect();
    let all =
        |lacks: fn(&DeviceInfo) -> bool| !described.is_empty() && described.iter().all(|info| info.is_some_and(lacks));
    if all(|info| info.segments.is_unknown()) {
        let what = "the segments are unknown, so that the requests cannot be run again";
        return Err(CommandError::file(path, format_args!("{what}: {REMEDY}")));
    }
    if needs_sizes && all(|info| info.lacks_requested) {
        let what = "it has the sizes of blocks, not of requests, and no streams, so that nothing can be verified";
        return Err(CommandError::file(path, format_args!("{what}: {REMEDY}")));
    }
    Ok(())
}

/// Returns the histories (uninterrupted sequences of events) of a recording's devices; a device has
/// several where events are missing. `path` is for error messages.
pub(crate) fn histories(path: &Path, recording: &Recording) -> Result<Vec<History>> {
    History::from_recording(recording).map_err(|error| CommandError::file(path, error))
}
