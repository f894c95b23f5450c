//! What `record` and `demo` share: the file that a recording is written to while it is made.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use vramscope_collector::{Keep, RecordingFile, parse_keep_bytes, parse_time};

use crate::failure::{Failure, Outcome};

/// How much of the recording the file keeps.
#[derive(Args, Debug)]
pub(crate) struct FileOptions {
    /// Keep the newest part of the recording alone, in a file of so many bytes at most: 500M, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_keep_bytes)]
    keep_bytes: Option<u64>,
    /// Keep the newest part of the recording alone, this long or up to twice as much: 30s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    keep: Option<Duration>,
}

impl FileOptions {
    /// How much that is.
    pub(crate) fn keep(&self) -> Keep {
        Keep { bytes: self.keep_bytes, time: self.keep }
    }

    /// Makes the file.
    pub(crate) fn create(&self, path: &Path) -> Outcome<RecordingFile> {
        RecordingFile::create(path, self.keep()).map_err(Failure::new)
    }
}
