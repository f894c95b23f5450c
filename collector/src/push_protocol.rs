//! The messages with which a process pushes its recording to a server's `/push`.
//!
//! The process first sends a [`Process`](crate::process::Process) as JSON; the server answers with
//! a [`PushReply`] that has `resume`. Then the process sends pairs of a [`PushNote`] and a binary
//! message with whole chunks; the server acknowledges each pair with a `PushReply` that has
//! `taken`. A note with `end` ends the recording.

use serde::{Deserialize, Serialize};

/// The JSON message that a process sends before each binary message with chunks: the number of the
/// chunk after them, and how many events are missing before them. A last one ends the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PushNote {
    /// The number of the chunk after the chunks in the next binary message.
    pub(crate) next: Option<u64>,
    /// Events that are missing before the chunks in the next binary message.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) missed: u64,
    /// True after the recording's last chunk.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) end: bool,
}

/// Returns true for 0: serde then leaves the field out of the JSON.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Returns true for `false`: serde then leaves the field out of the JSON.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The server's JSON answer to a pushing process: where to continue, or which chunks have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PushReply {
    /// The number of the first chunk that the server lacks. Sent once, as the first reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<u64>,
    /// The server has all chunks before this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken: Option<u64>,
}
