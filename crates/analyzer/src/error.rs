//! Why a request cannot be answered.

use vramscope_pool::ConfError;
use vramscope_pool::rerun::StartStateError;
use vramscope_trace::{DeviceId, FormatError};

/// Why a request cannot be answered: a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalysisError {
    /// A chunk of the recording is damaged or missing.
    #[error("the recording cannot be read: {0}")]
    Format(#[from] FormatError),
    /// The recorded requests cannot be simulated.
    #[error("the requests cannot be simulated: {0}")]
    Start(#[from] StartStateError),
    /// The recorded allocator settings cannot be read.
    #[error("recorded allocator settings {conf:?}: {error}")]
    RecordedSettings {
        /// The settings.
        conf: String,
        /// What is wrong with them.
        error: ConfError,
    },
    /// The settings to try cannot be read.
    #[error("settings {conf:?}: {error}")]
    Settings {
        /// The settings.
        conf: String,
        /// What is wrong with them.
        error: ConfError,
    },
    /// A setting is a share of a capacity that is not known.
    #[error("{0} is a share of the device's memory, whose size this recording lacks: set a capacity")]
    NeedsCapacity(&'static str),
    /// The recording cannot be written as a PyTorch snapshot.
    #[error("{0}")]
    Snapshot(String),
    /// The device has no recorded requests.
    #[error("{0} has no recorded requests to simulate")]
    NoRequests(DeviceId),
}
