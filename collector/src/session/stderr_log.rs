//! Messages for the user, as lines on stderr that begin with `vramscope: `.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::log_text::log_text;

/// Writes `message` to stderr as a line that begins with `vramscope: `.
pub fn print(message: &str) {
    // Not through the lock of `io::stderr`: in a forked child, a thread of the parent may hold it.
    // A single write keeps lines of several threads and processes apart. Ignore errors on stderr.
    if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
        let _ = File::from(stderr).write_all(format!("vramscope: {message}\n").as_bytes());
    }
}

/// A `tracing` layer that prints messages of vramscope's own crates to stderr, from the level INFO
/// on. At that level, the push to a shared server reports that it has reconnected.
struct StderrLayer;

/// Installs, for the whole process, the `tracing` layer that prints messages of vramscope's crates.
/// The libraries in this process have their own `tracing`, so no other subscriber is replaced.
pub fn install() {
    // The only failure is a second call, and the first stays in effect.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(StderrLayer));
}

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("vramscope")
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        print(&log_text(event));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Collects the lines that [`StderrLayer`] would print.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            self.0.lock().expect("no test panics with the lock").push(log_text(event));
        }
    }

    #[test]
    fn events_are_lines_with_the_message_first() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        tracing::subscriber::with_default(subscriber, || tracing::warn!(rank = 3, "disconnected {}", "train.py"));
        assert_eq!(*lines.0.lock().expect("no test panics with the lock"), ["disconnected train.py rank=3"]);
    }
}
