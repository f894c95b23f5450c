//! Captures the crate's log events, for tests.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

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
        let mut message = Message::default();
        event.record(&mut message);
        lock().push((*event.metadata().level(), message.0));
    }
}

/// A visitor that reads the text of a log message (a `tracing` event), without its other fields.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("writing to a string does not fail");
        }
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
