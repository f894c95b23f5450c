//! The file of a live recording and how much of the recording it keeps.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use vramscope_collector::{FileError, Keep, RecordingFile, parse_keep_bytes, parse_time};

use crate::error::{CommandError, Result};
use crate::output::{compression_extension, is_stdout};
use crate::terminal;

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
        self.try_create(path)?.map_err(creation_error)
    }

    /// Creates the file as [`create`](Self::create) does. If the disk does not allow that, prints a
    /// message and returns `None`; a wrong name is an error.
    pub(crate) fn create_if_writable(&self, path: &Path) -> Result<Option<RecordingFile>> {
        match self.try_create(path)? {
            Err(error) if is_unwritable(error.error.kind()) => {
                let error = CommandError::new(error);
                terminal::message(format_args!("{error}; the program runs without a file"));
                Ok(None)
            }
            result => result.map(Some).map_err(creation_error),
        }
    }

    /// Creates the file; the inner error is that of the system.
    fn try_create(&self, path: &Path) -> Result<std::result::Result<RecordingFile, FileError>> {
        if let Some(extension) = compression_extension(path) {
            return Err(CommandError::file(
                path,
                format_args!("live recordings are not compressed; leave out .{extension} and compress it afterwards"),
            ));
        }
        Ok(RecordingFile::create(path, self.keep()))
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

/// Returns true for errors of a disk, as opposed to those of a wrong path: it is read-only, full or
/// does not answer, or the user may not write there.
fn is_unwritable(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::TimedOut
    )
}

/// Returns the message of a file that cannot be created.
fn creation_error(error: FileError) -> CommandError {
    match error.error.kind() {
        ErrorKind::NotFound => CommandError::new(format_args!("{error}: create its folder first")),
        _ => CommandError::new(error),
    }
}
