//! What is printed: results on stdout, everything else on stderr.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vramscope_collector::is_control;

use crate::failure::{Failure, Outcome};

/// Prints to stdout, at once. A reader that went away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format_args!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Tells the user something beside the result, in one line.
pub(crate) fn note(text: impl std::fmt::Display) {
    // There is nobody to tell that nobody listens.
    let _ = writeln!(io::stderr(), "vramscope: {}", one_line(&text.to_string()));
}

/// A text as it may be shown, whoever it is from: a letter [that acts](is_control) stands there escaped.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_one_line() {
        assert_eq!(one_line("a \u{e4}\u{1f600} b"), "a \u{e4}\u{1f600} b");
        assert_eq!(one_line("a\nlistening: x\u{1b}[2J\u{202e}"), "a\\nlistening: x\\u{1b}[2J\\u{202e}");
    }
}
