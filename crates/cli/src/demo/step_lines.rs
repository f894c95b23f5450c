//! The output stream of the lines that report steps.

use crate::error::Result;
use crate::terminal;

/// The output stream of the lines that report a run's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepLines {
    /// The lines go to stdout, after the page's address.
    Stdout,
    /// The lines go to stderr, because the page's address will be the first line on stdout.
    Stderr,
    /// No lines are printed, because stdout is JSON.
    Hidden,
}

impl StepLines {
    /// Prints a line.
    pub(super) fn print(self, line: &str) -> Result {
        match self {
            Self::Stdout => terminal::print(&format!("{line}\n")),
            Self::Stderr => {
                terminal::progress_line(line);
                Ok(())
            }
            Self::Hidden => Ok(()),
        }
    }
}
