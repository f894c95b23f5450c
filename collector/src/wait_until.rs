//! A function with which tests wait for a condition.

use std::time::{Duration, Instant};

/// Maximum time that a test waits for a condition. Even a starved machine needs less, so only a
/// test that hangs reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);

/// Waits until `condition` returns true. After [`TIMEOUT`], panics with the text `what`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
