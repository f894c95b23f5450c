//! What the libraries log in tests.

use std::sync::{Mutex, PoisonError};

use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use vramscope_collector::log_text;

/// What the libraries have logged in all tests so far.
static LOG: Mutex<String> = Mutex::new(String::new());

/// Keeps what the libraries log, and prints it for the output of a failed test.
struct StderrLayer;

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("vramscope") {
            let line = format!("{} {}\n", event.metadata().level(), log_text(event));
            eprint!("{line}");
            LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
        }
    }
}

/// Starts to print and keep what the libraries log.
pub fn print_log() {
    // The only failure is a second call.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(StderrLayer));
}

/// Returns what the libraries have logged since [`print_log`].
#[must_use]
pub fn logged() -> String {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
