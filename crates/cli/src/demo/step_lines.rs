//! Where the lines of steps go.

use crate::error::Result;
use crate::terminal;

/// Where the lines of a run's steps are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepLines {
    /// On stdout, after the page's address.
    Stdout,
    /// On stderr, because the page's address will be the first line on stdout.
    Stderr,
    /// Nowhere, because stdout is JSON.
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
