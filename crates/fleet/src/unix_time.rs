//! Times since 1970, as processes and the broker write them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the current time in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    since_1970_ns(SystemTime::now())
}

/// Returns the current time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// Returns a time in nanoseconds since 1970; 0 for an earlier one.
pub(crate) fn since_1970_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
