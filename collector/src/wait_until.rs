//! Waits of tests for a condition.

use std::time::{Duration, Instant};

/// Longest wait for anything, on a slow machine. It only ends a test that hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
