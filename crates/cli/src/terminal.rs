//! Prints results on stdout, and messages and progress on stderr.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::escape::escape_controls;

/// Prints a result to stdout and flushes it.
pub(crate) fn print(text: &str) -> Result {
    let mut stdout = io::stdout().lock();
    ignore_broken_pipe(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Prints a result as one line of JSON.
pub(crate) fn print_json(report: &impl Serialize) -> Result {
    let json = serde_json::to_string(report).expect("finite numbers and text always serialize");
    print(&format!("{json}\n"))
}

/// Returns a failed write to stdout as an error, unless the reader (such as `head`) has closed the
/// pipe.
pub(crate) fn ignore_broken_pipe(written: io::Result<()>) -> Result {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::new(format_args!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a message to stderr as one line that begins with `vramscope: `.
pub(crate) fn message(text: impl std::fmt::Display) {
    // Ignore errors on stderr: they could only be reported there.
    let _ = writeln!(io::stderr(), "vramscope: {}", escape_controls(&text.to_string()));
}

/// Prints a line of progress to stderr, without a prefix and without escaping.
pub(crate) fn progress_line(line: &str) {
    // Ignore errors on stderr: they could only be reported there.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns true if both stdout and stderr are terminals, so that a user is watching.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Returns the width of the terminal on stdout in characters; `None` where stdout is a pipe or a
/// file.
pub(crate) fn columns() -> Option<u16> {
    let (_rows, columns) = console::Term::stdout().size_checked()?;
    io::stdout().is_terminal().then_some(columns)
}

/// Makes a progress bar draw itself on stderr at most ten times a second, with an indicatif
/// template.
fn with_template(progress: ProgressBar, template: &str) -> ProgressBar {
    progress.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(template).expect("the template is a valid constant");
    progress.with_style(style.progress_chars("=> "))
}

/// Creates a progress bar called `label` on stderr, which is drawn only on a terminal.
pub(crate) fn progress_bar(label: String) -> ProgressBar {
    with_template(ProgressBar::new(0), "{msg} [{bar:30}] {percent}% {eta}").with_message(label)
}

/// Creates a line on stderr whose text can change, which is drawn only on a terminal.
pub(crate) fn status_line() -> ProgressBar {
    let line = with_template(ProgressBar::new_spinner(), "{spinner} {msg}");
    line.enable_steady_tick(Duration::from_millis(200));
    line
}
