//! Prints what the libraries log.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::terminal;

/// Prints log events of vramscope's own crates on stderr, from the level INFO on. `serve` reports
/// joining and leaving processes at this level.
struct StderrLayer;

/// Installs the printing of log events for the whole process.
pub(crate) fn install() {
    // The only failure is a second call, and the first stays in effect.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(StderrLayer));
}

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("vramscope")
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        terminal::message(line.0);
    }
}

/// The text of a log event: its message, then its other fields.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            let rest = std::mem::take(&mut self.0);
            write!(self.0, "{value:?}{rest}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
        written.expect("writing to a string does not fail");
    }
}
