//! The error that ends a command.

use std::fmt;
use std::path::Path;

use crate::escape::escape_controls;

/// Bad usage or unusable input, as one line that says what and where.
#[derive(Debug)]
pub(crate) struct CommandError(String);

/// The result of a command or a part of it.
pub(crate) type Result<T = ()> = std::result::Result<T, CommandError>;

impl CommandError {
    /// Creates an error from a message that names its own subject.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        // Messages of the operating system and of readers may quote several lines of input.
        Self(message.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Creates an error about the file at `path`.
    pub(crate) fn file(path: &Path, message: impl fmt::Display) -> Self {
        Self::new(format_args!("{}: {message}", path.display()))
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_controls(&self.0))
    }
}
