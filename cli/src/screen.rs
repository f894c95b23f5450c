//! What is printed: results on stdout, everything else on stderr.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Outcome};

/// Prints to stdout, at once. A reader that went away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format_args!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Tells the user something beside the result.
pub(crate) fn note(text: impl std::fmt::Display) {
    // There is nobody to tell that nobody listens.
    let _ = writeln!(io::stderr(), "vramscope: {text}");
}

/// Whether a person sits in front of it.
pub(crate) fn is_interactive() -> bool {
    io::stdout().is_terminal() && io::stderr().is_terminal()
}

fn bar(progress: ProgressBar, template: &str) -> ProgressBar {
    progress.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(template).expect("the templates of this program are right");
    progress.with_style(style.progress_chars("=> "))
}

/// A bar for so much of `what`; shown only in a terminal.
pub(crate) fn progress(what: String) -> ProgressBar {
    bar(ProgressBar::new(0), "{msg} [{bar:30}] {percent}% {eta}").with_message(what)
}

/// A line that changes; shown only in a terminal.
pub(crate) fn ticker() -> ProgressBar {
    let line = bar(ProgressBar::new_spinner(), "{spinner} {msg}");
    line.enable_steady_tick(Duration::from_millis(200));
    line
}
