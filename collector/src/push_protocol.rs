//! The messages with which a process pushes its recording to a server's `/push`.
//!
//! The process first sends a [`Process`](crate::process::Process) as JSON; the server answers with
//! a [`PushReply`] that has `resume`. Then the process sends pairs of a
//! [`StreamNote`](vramscope_trace::live_protocol::StreamNote) with `next` and a binary message with
//! whole chunks; the server acknowledges each pair with a `PushReply` that has `taken`. A note with
//! `end` ends the recording.

use serde::{Deserialize, Serialize};

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
