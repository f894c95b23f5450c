//! Captures the crate's log events, for tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::log_text;

/// The captured log messages (`tracing` events) of all threads of the test program, with their
/// levels.
static EVENTS: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());

/// A `tracing` layer that adds this crate's log messages of level INFO and above to [`EVENTS`].
struct CaptureLayer;

impl<S: Subscriber> Layer<S> for CaptureLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("vramscope")
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        lock().push((*event.metadata().level(), log_text(event)));
    }
}

/// Locks the list of captured log messages, also after a thread that held the lock has panicked.
fn lock() -> MutexGuard<'static, Vec<(Level, String)>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Captures the log messages of all threads from now on; a second call has no effect.
pub(crate) fn start() {
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(CaptureLayer));
}

/// Returns all captured log messages, each with its level.
pub(crate) fn events() -> Vec<(Level, String)> {
    lock().clone()
}
