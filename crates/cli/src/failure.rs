//! What ends a command that cannot do what it was asked.

use std::fmt;
use std::path::Path;

use crate::screen::one_line;

/// Bad usage or unusable input; one line that says what and where.
#[derive(Debug)]
pub(crate) struct Failure(String);

/// What a command comes to.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure that concerns no file.
    pub(crate) fn new(what: impl fmt::Display) -> Self {
        // Messages of the operating system and of readers may quote what they met; here it is one line, whatever they say.
        Self(what.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Something is wrong with the file at `path`.
    pub(crate) fn file(path: &Path, what: impl fmt::Display) -> Self {
        Self::new(format_args!("{}: {what}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.0))
    }
}
