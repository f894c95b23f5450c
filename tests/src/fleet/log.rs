//! What the libraries log in tests.

use std::sync::{Mutex, PoisonError};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Identity, Layer, Layered, SubscriberExt as _};
use vramscope_collector::log_text;

/// What the libraries have logged in all tests so far.
static LOG: Mutex<String> = Mutex::new(String::new());

/// Keeps what the libraries log, and prints it for the output of a failed test.
pub(super) struct StderrLayer;

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target().starts_with("vramscope") && *metadata.level() <= Level::DEBUG {
            let line = format!("{} {}\n", metadata.level(), log_text(event));
            eprint!("{line}");
            LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
        }
    }
}

/// Starts to print and keep what the libraries log.
pub fn print_log() {
    print_log_and(Identity::new());
}

/// Starts to print and keep what the libraries log, and passes it to another layer.
pub(super) fn print_log_and(layer: impl Layer<Layered<StderrLayer, Registry>> + Send + Sync) {
    let subscriber = tracing_subscriber::registry().with(StderrLayer).with(layer);
    // The only failure is a second call.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Returns what the libraries have logged since [`print_log`].
#[must_use]
pub fn logged() -> String {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
