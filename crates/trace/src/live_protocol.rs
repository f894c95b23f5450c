//! Messages and close codes of the live protocol (`docs/live.md`) that servers and clients share.

use serde::{Deserialize, Serialize};

/// WebSocket close code of a recording that has ended.
pub const RECORDING_ENDED: u16 = 1000;
/// WebSocket close code of a server that has too many clients.
pub const TOO_MANY_CLIENTS: u16 = 1013;
/// WebSocket close code for a wrong or missing token.
pub const WRONG_TOKEN: u16 = 4401;

/// A text message about a stream of chunks, in JSON: the identity of the recording, or a
/// description of the next binary message.
///
/// A server sends it to its viewers; a process sends it to the server that it pushes to. Fields
/// with their default value are left out, and every field may be missing.
///
/// ```
/// use vramscope_trace::live_protocol::StreamNote;
///
/// let note = StreamNote { next: Some(7), ..StreamNote::default() };
/// assert_eq!(note.to_json(), r#"{"next":7}"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamNote {
    /// Identity of the recording: 32 hexadecimal digits. The first note to a viewer has it.
    #[serde(skip_serializing_if = "is_default")]
    pub recording: Option<String>,
    /// Whether the stream resumes at the requested position; if not, it begins with a header chunk.
    /// Sent with `recording`.
    #[serde(skip_serializing_if = "is_default")]
    pub resumed: Option<bool>,
    /// Position to resume at after the next binary message.
    #[serde(skip_serializing_if = "is_default")]
    pub next: Option<u64>,
    /// Number of events that are missing before the next binary message.
    #[serde(skip_serializing_if = "is_default")]
    pub missed: u64,
    /// True after the last chunk of a pushed recording.
    #[serde(skip_serializing_if = "is_default")]
    pub end: bool,
}

impl StreamNote {
    /// Returns the note as JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always serialize")
    }
}

/// Returns true for a default value, which serde then omits from the JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
