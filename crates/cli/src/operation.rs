//! Progress, messages and cancellation of a long operation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indicatif::ProgressBar;
#[cfg(feature = "mcp")]
use vramscope_trace::Count;

use crate::error::{CommandError, Result};
use crate::signals;
use crate::terminal;

/// Maximum number of messages that are kept for a client.
const MAX_MESSAGES: usize = 20;

/// A long operation, for a user at a terminal or for a client of a server. Clones share its state.
#[derive(Clone)]
pub(crate) struct Operation(Arc<OperationState>);

/// The state of an operation.
struct OperationState {
    /// Whether a terminal shows progress and messages.
    is_on_terminal: bool,
    is_cancelled: AtomicBool,
    shown: Mutex<ShownProgress>,
}

/// The progress and messages of an operation that a user or a client sees.
#[derive(Default)]
struct ShownProgress {
    /// Number of stages that have begun.
    stages: u64,
    /// The progress bar of the current stage; `None` before the first stage.
    bar: Option<ProgressBar>,
    /// Messages for the client, at most [`MAX_MESSAGES`].
    messages: Vec<String>,
    /// Number of messages, including messages that are not kept.
    message_count: u64,
}

/// The progress of an operation.
#[cfg(feature = "mcp")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Progress {
    /// Finished stages, plus the finished part of the current one.
    pub(crate) stages: f64,
    /// Label of the current stage.
    pub(crate) label: String,
}

impl Operation {
    /// Creates an operation whose progress and messages are printed on stderr.
    pub(crate) fn on_terminal() -> Self {
        Self::new(true)
    }

    /// Creates an operation on the terminal whose progress bar the first SIGINT or SIGTERM clears,
    /// before it ends the process.
    pub(crate) fn until_signal() -> Result<Self> {
        let operation = Self::on_terminal();
        let shown = operation.clone();
        signals::exit_on_signal(move || {
            if let Some(bar) = &shown.shown().bar {
                bar.finish_and_clear();
            }
        })?;
        Ok(operation)
    }

    /// Creates an operation whose progress and messages are read with [`progress`](Self::progress)
    /// and [`messages`](Self::messages).
    #[cfg(feature = "mcp")]
    pub(crate) fn for_client() -> Self {
        Self::new(false)
    }

    fn new(is_on_terminal: bool) -> Self {
        Self(Arc::new(OperationState { is_on_terminal, is_cancelled: AtomicBool::new(false), shown: Mutex::default() }))
    }

    /// Locks the progress and messages.
    fn shown(&self) -> MutexGuard<'_, ShownProgress> {
        // The state is usable even if a thread panicked: each change is a single assignment.
        self.0.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stage of the operation. Returns the progress bar to update, and to clear at its
    /// end.
    pub(crate) fn stage(&self, label: String) -> ProgressBar {
        let bar = if self.0.is_on_terminal {
            terminal::progress_bar(label)
        } else {
            let bar = ProgressBar::hidden();
            bar.set_message(label);
            bar.set_length(0);
            bar
        };
        let mut shown = self.shown();
        shown.stages += 1;
        shown.bar = Some(bar.clone());
        bar
    }

    /// Reports a message to the user or to the client.
    pub(crate) fn message(&self, text: impl fmt::Display) {
        if self.0.is_on_terminal {
            return terminal::message(text);
        }
        let mut shown = self.shown();
        shown.message_count += 1;
        if shown.message_count <= MAX_MESSAGES as u64 {
            shown.messages.push(text.to_string());
        }
    }

    /// Returns true once the operation should stop.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// Returns an error once the operation should stop.
    pub(crate) fn check(&self) -> Result {
        if self.is_cancelled() { Err(CommandError::new("cancelled")) } else { Ok(()) }
    }

    /// Makes the operation stop at its next check.
    #[cfg(feature = "mcp")]
    pub(crate) fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the progress of the operation; `None` before its first stage.
    #[cfg(feature = "mcp")]
    pub(crate) fn progress(&self) -> Option<Progress> {
        let shown = self.shown();
        let bar = shown.bar.as_ref()?;
        let done = match bar.length() {
            Some(length) if length > 0 => (bar.position() as f64 / length as f64).min(1.0),
            _ => 0.0,
        };
        Some(Progress { stages: (shown.stages - 1) as f64 + done, label: bar.message() })
    }

    /// Returns the messages for the client; the last one says how many more there were.
    #[cfg(feature = "mcp")]
    pub(crate) fn messages(&self) -> Vec<String> {
        let shown = self.shown();
        let mut messages = shown.messages.clone();
        let left_out = Count(shown.message_count - messages.len() as u64);
        if left_out.0 > 0 {
            messages.push(format!("{} left out", left_out.of("more message", "more messages")));
        }
        messages
    }
}

#[cfg(all(test, feature = "mcp"))]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_stages_and_their_parts() {
        let operation = Operation::for_client();
        assert_eq!(operation.progress(), None);
        operation.stage("reading".to_owned());
        let progress = |stages: f64, label: &str| Some(Progress { stages, label: label.to_owned() });
        assert_eq!(operation.progress(), progress(0.0, "reading"));
        let bar = operation.stage("trying".to_owned());
        bar.set_length(4);
        bar.set_position(1);
        assert_eq!(operation.progress(), progress(1.25, "trying"));
        bar.finish_and_clear();
        assert_eq!(operation.progress(), progress(2.0, "trying"));
    }

    #[test]
    fn cancelled_operation_fails_its_checks() {
        let operation = Operation::for_client();
        assert!(operation.check().is_ok());
        operation.clone().cancel();
        assert_eq!(operation.check().expect_err("it was cancelled").to_string(), "cancelled");
    }

    #[test]
    fn messages_for_a_client_are_limited() {
        let operation = Operation::for_client();
        (0..100).for_each(|number| operation.message(number));
        let messages = operation.messages();
        assert_eq!(messages.len(), MAX_MESSAGES + 1);
        assert_eq!(messages.last().map(String::as_str), Some("80 more messages left out"));
    }
}
