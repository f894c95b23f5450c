//! The text of log events.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

/// Returns the text of a log event (a `tracing` event): its message, then its other fields as
/// `name=value`.
#[must_use]
pub fn log_text(event: &tracing::Event<'_>) -> String {
    let mut text = Text::default();
    event.record(&mut text);
    text.0
}

/// The text of the fields that were visited so far.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string fails only if a value's own formatting does; the rest is still shown.
        let _ = if field.name() == "message" {
            let rest = std::mem::take(&mut self.0);
            write!(self.0, "{value:?}{rest}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}
