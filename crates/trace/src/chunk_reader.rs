//! Splits a stream of bytes into chunks.

use crate::chunk::{ChunkKind, HEADER_LEN, Header, MAGIC, PREAMBLE_LEN, PackedChunk, check_preamble};
use crate::error::FormatError;

/// Splits a stream of bytes into the chunks of a recording. The bytes may arrive in any pieces.
#[derive(Debug, Default)]
pub(crate) struct ChunkReader {
    buffer: Vec<u8>,
    /// Number of leading bytes of `buffer` that were returned as chunks.
    used: usize,
    /// Byte offset of `buffer[used]` in the stream.
    offset: u64,
    /// Whether the preamble was read.
    has_preamble: bool,
    /// Whether the header chunk was read.
    has_header: bool,
    /// The error that every later call returns.
    failed: Option<FormatError>,
}

impl ChunkReader {
    /// Appends the next bytes of the stream, for later calls of [`next_chunk`](Self::next_chunk).
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            // Remove used bytes only once they are more than half of the buffer, so that many small
            // pushes do not move the other bytes each time.
            if self.used > self.buffer.len() / 2 {
                self.buffer.drain(..self.used);
                self.used = 0;
            }
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next complete chunk, or `None` if more bytes are needed. Skips chunks of unknown
    /// kinds that may be skipped. After an error, every call returns that error.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<PackedChunk>, FormatError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.scan();
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        result
    }

    /// Makes every later call of [`next_chunk`](Self::next_chunk) return `error`.
    pub(crate) fn fail(&mut self, error: FormatError) {
        self.failed = Some(error);
        self.buffer = Vec::new();
        self.used = 0;
    }

    /// Returns what [`next_chunk`](Self::next_chunk) returns, but does not remember an error.
    fn scan(&mut self) -> Result<Option<PackedChunk>, FormatError> {
        loop {
            let rest = &self.buffer[self.used..];
            if !self.has_preamble || rest.first() == Some(&MAGIC[0]) {
                if !check_preamble(rest, self.offset)? {
                    return Ok(None);
                }
                self.has_preamble = true;
                self.advance(PREAMBLE_LEN);
                continue;
            }
            let Some(header) = rest.first_chunk() else { return Ok(None) };
            let offset = self.offset;
            let header = Header::parse(header, offset)?;
            let length = HEADER_LEN + header.stored;
            let Some(chunk) = rest.get(..length) else { return Ok(None) };
            header.check(chunk, offset)?;
            let packed = header.packed(chunk, offset);
            if !self.has_header && header.kind != Some(ChunkKind::Header) {
                return Err(FormatError::new(offset, "the first chunk is not a header chunk"));
            }
            self.has_header = true;
            self.advance(length);
            if packed.is_some() {
                return Ok(packed);
            }
        }
    }

    /// Marks the next `by` bytes of the stream as used, so that they can be dropped.
    fn advance(&mut self, by: usize) {
        self.used += by;
        self.offset += by as u64;
    }

    /// Returns an error if the bytes so far end inside the preamble or a chunk, or before the first
    /// chunk.
    pub(crate) fn finish(&self) -> Result<(), FormatError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let rest = self.buffer.len() - self.used;
        if !self.has_header {
            let reason = "the recording ends before its first chunk: nothing in it can be shown";
            return Err(FormatError::new(self.offset + rest as u64, reason));
        }
        if rest == 0 {
            return Ok(());
        }
        let place = format!("the recording ends inside a chunk, {rest} bytes after its start");
        Err(FormatError::new(self.offset, format!("{place}; everything before it is complete")))
    }
}
