//! Where the chunks of a recording are.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::chunk::{ChunkKind, Packed};
use crate::error::FormatError;

/// Bytes that are read where they are wanted: a file, or part of memory.
pub trait ReadAt: Send + Sync {
    /// Exactly the bytes of a range.
    ///
    /// # Errors
    /// Why they cannot be had, in words.
    fn read_at(&self, range: Range<u64>) -> Result<Vec<u8>, String>;
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let range =
            usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(usize::MAX);
        self.get(range).map(<[u8]>::to_vec).ok_or_else(|| "there are not so many bytes".to_owned())
    }
}

/// What can read a recording's bytes, if anything can.
#[derive(Clone, Default)]
pub(super) struct Source(pub(super) Option<Arc<dyn ReadAt>>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Source(Some(..))" } else { "Source(None)" })
    }
}

/// A chunk of events or a full state, here or where it can be read.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) kind: ChunkKind,
    /// The number of its first event, or its moment.
    pub(crate) first_event: u64,
    pub(crate) events: u32,
    /// The time of the last event up to here; never goes back.
    pub(crate) end_ns: u64,
    /// Where in the recording it is, header included.
    pub(super) range: Range<u64>,
    pub(super) packed: Option<Packed>,
    /// Of a full state: it is another than what comes before leads to.
    pub(crate) is_news: bool,
}

impl Stored {
    /// The moment after its last event.
    pub(crate) fn end_event(&self) -> u64 {
        self.first_event.saturating_add(u64::from(self.events))
    }

    /// Where in the recording it begins.
    pub(crate) fn offset(&self) -> u64 {
        self.range.start
    }

    /// The chunk.
    pub(super) fn chunk(&self, source: &Source) -> Result<Cow<'_, Packed>, FormatError> {
        if let Some(packed) = &self.packed {
            return Ok(Cow::Borrowed(packed));
        }
        let offset = self.range.start;
        let Some(source) = &source.0 else {
            return Err(FormatError::new(offset, "this chunk has not been read yet"));
        };
        let bytes = source.read_at(self.range.clone()).map_err(|error| FormatError::new(offset, error))?;
        self.parse(&bytes).map(Cow::Owned)
    }

    /// Makes the chunk of its bytes, which must be the one that was there.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<Packed, FormatError> {
        let packed = Packed::parse(bytes, self.range.start)?;
        let is_it = (packed.kind, packed.first_event, packed.events) == (self.kind, self.first_event, self.events);
        if is_it { Ok(packed) } else { Err(packed.error("another chunk than was there before")) }
    }
}
