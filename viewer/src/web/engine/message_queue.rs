//! Messages of the live connection that have not been decoded yet.

use std::collections::VecDeque;

use js_sys::Uint8Array;

/// Maximum number of bytes of received messages that wait to be decoded; beyond, the page skips
/// ahead to newer events. Decoding this many takes seconds, so a longer queue would not be live.
const MAX_QUEUED_BYTES: u32 = 64 << 20;
/// Number of bytes that are decoded between two checks of the time limit: up to 20,000 events, a
/// few milliseconds.
const SLICE_BYTES: u32 = 16 << 10;

/// A binary message of the live connection that has not been decoded completely.
struct Message {
    bytes: Uint8Array,
    /// Decoded bytes.
    used: u32,
    /// Number of the chunk after the message, if the server said so.
    next: Option<u64>,
}

/// The binary messages of the live connection that wait to be decoded, in order of arrival.
#[derive(Default)]
pub(super) struct MessageQueue {
    messages: VecDeque<Message>,
    queued_bytes: u32,
    /// Bytes of the recording received so far.
    pub(super) received_bytes: f64,
    /// Close code of the connection, until all messages before it are decoded.
    pub(super) close_code: Option<u16>,
    /// Whether a timer will continue decoding.
    pub(super) is_scheduled: bool,
}

impl MessageQueue {
    /// Adds a message; `next` is the number of the chunk after the message, if known. Returns false
    /// if more than [`MAX_QUEUED_BYTES`] wait now.
    pub(super) fn push(&mut self, bytes: Uint8Array, next: Option<u64>) -> bool {
        self.received_bytes += f64::from(bytes.length());
        self.queued_bytes = self.queued_bytes.saturating_add(bytes.length());
        self.messages.push_back(Message { bytes, used: 0, next });
        self.queued_bytes <= MAX_QUEUED_BYTES
    }

    /// Discards all messages that wait; the count of received bytes stays.
    pub(super) fn clear(&mut self) {
        *self = Self { received_bytes: self.received_bytes, is_scheduled: self.is_scheduled, ..Self::default() };
    }

    /// Returns the number of bytes that wait to be decoded.
    pub(super) fn queued_bytes(&self) -> u32 {
        self.queued_bytes
    }

    /// Returns true if no message waits to be decoded.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Removes and returns up to [`SLICE_BYTES`] bytes of the oldest message; with its last bytes
    /// also the number of the chunk after the message, if known. `None` if no message waits.
    pub(super) fn next_slice(&mut self) -> Option<(Vec<u8>, Option<u64>)> {
        let message = self.messages.front_mut()?;
        let end = message.bytes.length().min(message.used + SLICE_BYTES);
        let slice = message.bytes.subarray(message.used, end).to_vec();
        self.queued_bytes -= end - message.used;
        message.used = end;
        if end < message.bytes.length() {
            return Some((slice, None));
        }
        let next = self.messages.pop_front().and_then(|message| message.next);
        Some((slice, next))
    }
}
