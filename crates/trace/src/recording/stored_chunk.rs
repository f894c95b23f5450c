//! The chunks of a recording, in memory or in a file or buffer from which they are read again.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::chunk::{ChunkKind, PackedChunk};
use crate::error::FormatError;

/// A source of bytes with random access, such as a file or a buffer.
///
/// Implement it for a file to open recordings that are larger than memory; `Vec<u8>` implements it
/// for bytes in memory.
pub trait ReadAt: Send + Sync {
    /// Returns exactly the bytes of `range`, counted from the start of the recording.
    ///
    /// # Errors
    /// If the bytes cannot be read, or there are fewer
    /// ([`UnexpectedEof`](io::ErrorKind::UnexpectedEof)).
    fn read_at(&self, range: Range<u64>) -> io::Result<Vec<u8>>;
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let range =
            usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(usize::MAX);
        let bytes = self.get(range).map(<[u8]>::to_vec);
        bytes.ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the recording ends before this range of bytes")
        })
    }
}

impl fmt::Debug for dyn ReadAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dyn ReadAt")
    }
}

/// The position and event numbers of a chunk of a recording and, if it is in memory, the chunk
/// itself.
#[derive(Clone, Debug)]
pub(super) struct StoredChunk {
    pub(super) kind: ChunkKind,
    /// Index (from 0) of its first event; for a chunk without events, the moment that it describes.
    pub(super) first_event: u64,
    pub(super) events: u32,
    /// The latest time of all events up to its end; never decreases.
    pub(super) end_ns: u64,
    /// Its byte range in the recording, with its header.
    pub(super) range: Range<u64>,
    pub(super) packed: Option<PackedChunk>,
    /// Whether it is a full state that differs from the state that the events before it lead to.
    pub(super) is_correction: bool,
}

impl StoredChunk {
    /// Returns the moment after the chunk's last event; for a chunk without events, such as a full
    /// state, the moment at which it was written.
    pub(super) fn end_event(&self) -> u64 {
        self.first_event.saturating_add(u64::from(self.events))
    }

    /// Returns the byte offset in the recording at which the chunk begins.
    pub(super) fn offset(&self) -> u64 {
        self.range.start
    }

    /// Returns the chunk itself, from memory or read from `source`; an error if neither has it.
    pub(super) fn chunk(&self, source: Option<&dyn ReadAt>) -> Result<Cow<'_, PackedChunk>, FormatError> {
        if let Some(packed) = &self.packed {
            return Ok(Cow::Borrowed(packed));
        }
        let offset = self.range.start;
        let source = source.ok_or_else(|| FormatError::new(offset, "this chunk has not been loaded yet"))?;
        let bytes = source.read_at(self.range.clone()).map_err(|error| FormatError::read_failed(offset, error))?;
        self.parse(&bytes).map(Cow::Owned)
    }

    /// Parses `bytes`, the whole chunk. Returns an error if they are damaged, or are another chunk
    /// because the file changed.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<PackedChunk, FormatError> {
        let packed = PackedChunk::parse(bytes, self.range.start)?;
        if (packed.kind, packed.first_event, packed.events) != (self.kind, self.first_event, self.events) {
            return Err(packed.error("the file has changed since it was opened: open it again"));
        }
        Ok(packed)
    }
}
