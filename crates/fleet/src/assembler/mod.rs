//! Puts the messages of one process in order and finds the chunks that are new.
//!
//! A broker may deliver a message twice or drop old messages, and a process regularly sends a
//! *start*: header, all definitions and a full state, for readers that begin there. The
//! [`Assembler`] returns each chunk once. After lost messages it continues at the next start; if
//! the start repeats the lost chunks, nothing is missing.

use bytes::{Bytes, BytesMut};
use vramscope_trace::{Chunk, ChunkKind};

use crate::message::ChunkMessage;

#[cfg(test)]
mod tests;

/// Maximum total size of chunks that are split over consecutive messages, in bytes: a full state of
/// 64 MiB, and the header and definitions before it.
const MAX_JOINED_BYTES: usize = 66 << 20;

/// New chunks, in order, and the number of messages that were lost before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    /// The bytes of whole chunks; empty if the message had nothing new.
    pub bytes: Vec<u8>,
    /// The number of the chunk after them.
    pub next: u64,
    /// True after the process's last message.
    pub has_ended: bool,
    /// Number of messages that were lost before this one.
    pub lost_messages: u64,
}

/// Error for a message that is not a valid part of a recording. Later messages of its process
/// cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {number}: {reason}")]
pub struct AssemblerError {
    /// The number of the message.
    number: u64,
    /// Why the message is invalid.
    reason: String,
}

/// Puts the messages of one process in order.
#[derive(Debug, Default)]
pub struct Assembler {
    /// The number of the next message; `None` before the first.
    expected: Option<u64>,
    /// True if no message is missing since the last start.
    is_in_sync: bool,
    /// The number of the first chunk that was not returned yet.
    next: u64,
    /// The bytes so far of chunks that continue in the next message.
    joined: BytesMut,
}

impl Assembler {
    /// Creates an assembler that begins at the first start that arrives.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns true if a start and every message since then have arrived.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.is_in_sync
    }

    /// Returns the number of bytes kept of chunks that continue in the next message.
    pub(crate) fn joined_bytes(&self) -> usize {
        self.joined.len()
    }

    /// Drops incomplete chunks and continues at the next start. Chunks that were returned before,
    /// and all chunks with lower numbers than `next`, will not be returned.
    pub(crate) fn restart_from(&mut self, next: u64) {
        *self = Self { next: self.next.max(next), ..Self::default() };
    }

    /// Takes the next message and returns the chunks in it that are new.
    ///
    /// # Errors
    /// If the message's bytes are not chunks, or chunks that continue in further messages are too
    /// large.
    pub fn push(&mut self, message: &ChunkMessage) -> Result<Assembled, AssemblerError> {
        let lost_messages = match self.expected {
            Some(expected) if message.number < expected => return Ok(self.nothing_new()),
            Some(expected) => message.number - expected,
            None => 0,
        };
        self.expected = Some(message.number.saturating_add(1));
        if lost_messages > 0 {
            self.is_in_sync = false;
            self.joined = BytesMut::new();
        }
        self.is_in_sync |= message.is_start;
        if message.is_end {
            return Ok(Assembled { has_ended: true, lost_messages, ..self.nothing_new() });
        }
        if !self.is_in_sync {
            return Ok(Assembled { lost_messages, ..self.nothing_new() });
        }
        let invalid = |reason: String| AssemblerError { number: message.number, reason };
        if self.joined.len() + message.payload.len() > MAX_JOINED_BYTES {
            return Err(invalid(format!("chunks that belong together have more than {MAX_JOINED_BYTES} bytes")));
        }
        let payload = if message.continues || !self.joined.is_empty() {
            self.joined.extend_from_slice(&message.payload);
            if message.continues {
                return Ok(Assembled { lost_messages, ..self.nothing_new() });
            }
            std::mem::take(&mut self.joined).freeze()
        } else {
            message.payload.clone()
        };
        let bytes = self.new_chunks(&payload, message.next).map_err(invalid)?;
        self.next = self.next.max(message.next);
        Ok(Assembled { bytes, next: self.next, has_ended: false, lost_messages })
    }

    /// Returns the bytes of the chunks in `payload` that were not returned yet. `next` is the
    /// number of the chunk after the payload.
    fn new_chunks(&self, payload: &Bytes, next: u64) -> Result<Vec<u8>, String> {
        let mut chunks = Vec::new();
        let mut at = 0;
        while at < payload.len() {
            let chunk = Chunk::read(&payload[at..], at as u64).map_err(|error| error.to_string())?;
            let chunk = chunk.ok_or_else(|| format!("it ends inside the chunk at byte {at}"))?;
            let end = at + chunk.bytes.len();
            chunks.push((chunk.kind, at..end));
            at = end;
        }
        let mut bytes = Vec::new();
        for (index, (kind, range)) in chunks.iter().enumerate() {
            // Definitions before a start's full state have no number of their own; a decoder skips
            // those that it has. All other chunks are numbered up to `next`.
            let number = next.saturating_sub((chunks.len() - index) as u64);
            let is_permanent = matches!(kind, ChunkKind::Header | ChunkKind::Definitions);
            if is_permanent || number >= self.next {
                bytes.extend_from_slice(&payload[range.clone()]);
            }
        }
        Ok(bytes)
    }

    /// Returns the result for a message without new chunks.
    fn nothing_new(&self) -> Assembled {
        Assembled { next: self.next, ..Assembled::default() }
    }
}
