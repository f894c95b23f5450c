//! Messages for the user, as lines on stderr that begin with `vramscope: `.

use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::log_text::log_text;

/// The descriptor of standard error.
const STDERR: RawFd = 2;

/// Writes `message` to stderr as a line that begins with `vramscope: `.
pub fn print(message: &str) {
    // Not through the lock of `io::stderr`: in a forked child, a thread of the parent may hold it.
    // Not through another descriptor either: the process may be at its limit of open files.
    // SAFETY: The file is never dropped, so this does not close the descriptor, which the process
    // keeps open. If the process has closed it, the write fails.
    let mut stderr = ManuallyDrop::new(unsafe { File::from_raw_fd(STDERR) });
    // A single write keeps lines of several threads and processes apart. Ignore errors on stderr.
    let _ = stderr.write_all(format!("vramscope: {message}\n").as_bytes());
}

/// A `tracing` layer that prints messages of vramscope's own crates to stderr, from the level INFO
/// on. At that level, the push to a shared server reports that it has reconnected.
struct StderrLayer;

/// Installs, for the whole process, the `tracing` layer that prints messages of vramscope's crates.
/// The libraries in this process have their own `tracing`, so no other subscriber is replaced.
pub fn install() {
    // This fails only on a second call; the layer of the first call stays in effect.
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

    /// Set in the process that [`process_at_its_limit_of_open_files_prints`] starts.
    #[cfg(target_os = "linux")]
    const AT_LIMIT: &str = "VRAMSCOPE_TEST_AT_LIMIT";

    #[cfg(target_os = "linux")]
    #[test]
    fn process_at_its_limit_of_open_files_prints() {
        // SAFETY: The declaration matches Linux's C library.
        unsafe extern "C" {
            fn setrlimit(resource: std::ffi::c_int, limits: *const [u64; 2]) -> std::ffi::c_int;
        }
        /// `RLIMIT_NOFILE`.
        const OPEN_FILES: std::ffi::c_int = 7;
        if std::env::var_os(AT_LIMIT).is_some() {
            // SAFETY: `limits` points to two numbers, the soft and the hard limit.
            assert_eq!(unsafe { setrlimit(OPEN_FILES, &[0, 0]) }, 0);
            print("a message at the limit");
            return;
        }
        let mut command = std::process::Command::new(std::env::current_exe().expect("the test is a program"));
        command.args(["process_at_its_limit_of_open_files_prints", "--nocapture"]).env(AT_LIMIT, "1");
        let output = command.output().expect("the test's program starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("vramscope: a message at the limit\n"), "{errors}");
    }

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
