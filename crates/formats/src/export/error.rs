//! The error and the progress callback of all exports.

use std::io;

use vramscope_trace::FormatError;

/// A callback that receives the progress of an export: the work done so far and the total work,
/// both in events to visit. An export that visits the events several times counts them each time.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The error of exporting a recording to another format.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording could not be read.
    #[error("cannot read the recording: {0}")]
    Recording(#[from] FormatError),
    /// The output could not be written.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// The recording contains something that the format cannot represent.
    #[error("{0}")]
    Unsupported(String),
}

/// The result of exporting a recording, or a part of it.
pub(crate) type Result<T = (), E = ExportError> = std::result::Result<T, E>;
