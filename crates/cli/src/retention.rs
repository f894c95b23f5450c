//! The file of a live recording, and the limits of how much of the recording it keeps.

use std::io::{self, ErrorKind};
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

    /// Creates the file of a live recording at `path`. Returns an error if the name has the
    /// extension of a compressed file.
    pub(crate) fn create(&self, path: &Path) -> Result<RecordingFile> {
        self.try_create(path)?.map_err(creation_error)
    }

    /// Creates the file as [`create`](Self::create) does. If that fails for another reason than a
    /// wrong path or option, prints a message and returns `None`.
    pub(crate) fn create_if_writable(&self, path: &Path) -> Result<Option<RecordingFile>> {
        match self.try_create(path)? {
            Err(error) if !is_misuse(&error.error) => {
                terminal::message(lost_recording(&error));
                Ok(None)
            }
            result => result.map(Some).map_err(creation_error),
        }
    }

    /// Creates the file. The outer error means that the name is a compressed file's; the inner one
    /// comes from the system.
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

/// Returns true if the file's path or the options are wrong: the path's folder does not exist, the
/// path is a folder, or the file cannot keep only the newest part. All other errors come from the
/// disk, or from another process that records to the file.
fn is_misuse(error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidFilename => true,
        // The collector refuses options without a system error number; failing disks have one.
        ErrorKind::InvalidInput => error.raw_os_error().is_none(),
        _ => false,
    }
}

/// Returns the message for a program that runs although its recording's file cannot be created.
fn lost_recording(error: &FileError) -> String {
    let advice = match error.error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ": free space, or name a file on another disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ": name a file in a folder that you can write",
        // The error itself says what to do.
        _ if error.error.raw_os_error().is_none() && error.error.kind() == ErrorKind::Other => "",
        _ => ": name a file on another disk",
    };
    format!("{}; the program runs without a file{advice}", CommandError::new(error))
}

/// Returns the error for a file that cannot be created.
fn creation_error(error: FileError) -> CommandError {
    match error.error.kind() {
        ErrorKind::NotFound => CommandError::new(format_args!("{error}: create its folder first")),
        _ => CommandError::new(error),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use nix::errno::Errno;

    use super::*;

    fn error(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno as i32)
    }

    #[test]
    fn program_only_fails_to_start_for_a_wrong_path() {
        for errno in [Errno::ENOENT, Errno::ENOTDIR, Errno::EISDIR, Errno::ENAMETOOLONG] {
            assert!(is_misuse(&error(errno)), "{errno}");
        }
        let of_disks = [
            Errno::EACCES,
            Errno::EPERM,
            Errno::EROFS,
            Errno::ENOSPC,
            Errno::EDQUOT,
            Errno::EFBIG,
            Errno::EIO,
            Errno::ESTALE,
            Errno::ETIMEDOUT,
            Errno::EHOSTDOWN,
            Errno::ENOTCONN,
            Errno::ENXIO,
            Errno::ENODEV,
            Errno::ENOLCK,
            Errno::ENOSYS,
            Errno::EOPNOTSUPP,
            Errno::EINVAL,
            Errno::EBUSY,
            Errno::EMFILE,
            Errno::ENOMEM,
        ];
        for errno in of_disks {
            assert!(!is_misuse(&error(errno)), "{errno}");
        }
        assert!(!is_misuse(&ErrorKind::TimedOut.into()));
    }

    #[test]
    fn file_that_cannot_be_created_is_an_error_only_after_misuse() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run.vram");
        let arguments = RetentionArguments::default();
        let is_created = |path: &Path| arguments.create_if_writable(path).map(|file| file.is_some()).ok();
        assert_eq!(is_created(folder.path()), None);
        assert_eq!(is_created(&folder.path().join("no/run.vram")), None);
        fs::write(folder.path().join("file"), "").expect("the folder is writable");
        assert_eq!(is_created(&folder.path().join("file/run.vram")), None);
        assert_eq!(is_created(&folder.path().join("run.vram.gz")), None);
        let newest_part = RetentionArguments { keep_bytes: Some(1 << 20), keep: None };
        assert!(newest_part.create_if_writable(Path::new("/dev/null")).is_err());
        let file = arguments.create(&path).expect("the folder is writable");
        // Another process records to the file.
        assert_eq!(is_created(&path), Some(false));
        drop(file);
        assert_eq!(is_created(&path), Some(true));
    }

    #[test]
    fn message_says_why_a_program_runs_without_a_file() {
        let message = |error| lost_recording(&FileError { name: "run.vram".to_owned(), error });
        assert_eq!(
            message(error(Errno::ENOSPC)),
            "run.vram: No space left on device; the program runs without a file: free space, or name a file on \
             another disk"
        );
        assert_eq!(
            message(error(Errno::EROFS)),
            "run.vram: Read-only file system; the program runs without a file: name a file in a folder that you can \
             write"
        );
        assert_eq!(
            message(error(Errno::EIO)),
            "run.vram: Input/output error; the program runs without a file: name a file on another disk"
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run.vram");
        let _file = RecordingFile::create(&path, Keep::default()).expect("the folder is writable");
        let error = RecordingFile::create(&path, Keep::default()).expect_err("the file is locked");
        let message = lost_recording(&error);
        assert!(
            message.ends_with(
                "run.vram: another process is recording to this file: choose another name for each process; the \
                 program runs without a file"
            ),
            "{message}"
        );
    }
}
