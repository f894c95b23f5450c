//! The options of a wait for another process.

use std::time::Duration;

/// The options of a wait for a program in another process: its timeout, messages and cancellation.
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    expect(dead_code, reason = "`unsupported` waits for nothing")
)]
pub(crate) struct Wait<'a> {
    /// Longest wait for the program's end.
    pub(crate) timeout: Duration,
    /// Called with a message for the user: if the process does not answer for some time, or if a
    /// request could not be withdrawn.
    pub(crate) on_message: &'a dyn Fn(&str),
    /// Returns true to end the wait early.
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
}
