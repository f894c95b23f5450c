//! The error that ends a command.

use std::fmt;
use std::path::Path;

use crate::escape::escape_controls;

/// The error that ends a command: one line that says what failed, where, and what to do.
#[derive(Debug)]
pub(crate) struct CommandError(String);

/// The result of a command or of a part of it; the error is a [`CommandError`].
pub(crate) type Result<T = ()> = std::result::Result<T, CommandError>;

impl CommandError {
    /// Creates an error from a message that names its own subject.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        // Messages of the operating system and of readers may quote several lines of input.
        let line = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self(without_error_numbers(&line))
    }

    /// Creates an error about the file at `path`.
    pub(crate) fn file(path: &Path, message: impl fmt::Display) -> Self {
        Self::new(format_args!("{}: {message}", path.display()))
    }
}

/// Removes the numbers that the standard library adds to errors of the operating system, such as
/// `(os error 13)`.
fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(
            part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-').strip_prefix(')').unwrap_or(part),
        );
    }
    kept
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_controls(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_without_error_numbers() {
        let check = |message: &str, expected: &str| assert_eq!(CommandError::new(message).to_string(), expected);
        check("a.vram: Permission denied (os error 13)", "a.vram: Permission denied");
        check("refused (os error -5): is\nit running?", "refused: is it running?");
        check("plain (os error", "plain (os error");
    }
}
