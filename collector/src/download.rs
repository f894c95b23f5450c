//! Downloads what a live recording contains so far; `vramscope mcp` uses this.

use std::time::Duration;

use crate::follow::FollowError;
use crate::socket::{self, Address};

/// Downloads everything that the live recording at `address` contains so far, at most `max_bytes`.
/// The bytes are a file of the [recording format](vramscope_trace).
///
/// `keep_going` receives the number of bytes so far, and the total if the server reports it; the
/// download ends once it returns false. It is called several times a second.
///
/// # Errors
/// If the server cannot be reached, refuses access, serves no live recording, sends more than
/// `max_bytes` or takes longer than `timeout`; and if `keep_going` returns false.
pub fn download(
    address: &Address,
    max_bytes: u64,
    timeout: Duration,
    keep_going: impl FnMut(u64, Option<u64>) -> bool,
) -> Result<Vec<u8>, FollowError> {
    Ok(socket::http::get(address, "trace.vram", max_bytes, timeout, keep_going)?)
}
