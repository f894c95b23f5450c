//! Prints the libraries' log messages.

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use vramscope_collector::log_text;

use crate::terminal;

/// A layer that prints log events of vramscope's own crates on stderr, from the level INFO on.
/// `serve` reports joining and leaving processes at this level.
struct StderrLayer;

/// Starts to print log events, for the whole process.
pub(crate) fn install() {
    // The only failure is a second call, and the first stays in effect.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(StderrLayer));
}

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("vramscope")
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        terminal::message(log_text(event));
    }
}
