//! The file of a live recording and how much of the recording it keeps.

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use vramscope_collector::{Keep, RecordingFile, parse_keep_bytes, parse_time};

use crate::error::{CommandError, Result};
use crate::output::{compression_extension, is_stdout};

/// Options `--keep` and `--keep-bytes` of commands that write a live recording: how much of it the
/// file keeps.
#[derive(Args, Debug, Default)]
pub(crate) struct RetentionArguments {
    /// Keep only the newest part of the recording, in a file of at most this size: 500M, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_keep_bytes)]
    keep_bytes: Option<u64>,
    /// Keep only the newest part of the recording, this long to twice as long: 30s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    keep: Option<Duration>,
}

impl RetentionArguments {
    /// Returns the limits in bytes and in time of the newest part that the file keeps; without
    /// limits it keeps everything.
    pub(crate) fn keep(&self) -> Keep {
        Keep { bytes: self.keep_bytes, time: self.keep }
    }

    /// Creates the file of a live recording at `path`; fails if the name is that of a compressed
    /// file.
    pub(crate) fn create(&self, path: &Path) -> Result<RecordingFile> {
        if let Some(extension) = compression_extension(path) {
            return Err(CommandError::file(
                path,
                format_args!("live recordings are not compressed; leave out .{extension} and compress it afterwards"),
            ));
        }
        RecordingFile::create(path, self.keep()).map_err(|error| match error.error.kind() {
            io::ErrorKind::NotFound => CommandError::new(format_args!("{error}: create its folder first")),
            _ => CommandError::new(error),
        })
    }

    /// Fails if `--record` names standard output, or if a limit was given without `--record`.
    pub(crate) fn require_file(&self, record: Option<&Path>) -> Result {
        if record.is_some_and(is_stdout) {
            return Err(CommandError::new(
                "--record needs a file, not standard output, because the page reads the recording back: \
                 name a file such as run.vram, or use vramscope record URL -o -",
            ));
        }
        if record.is_none() && !self.keep().is_everything() {
            return Err(CommandError::new("--keep and --keep-bytes limit a file; name it with --record"));
        }
        Ok(())
    }
}
