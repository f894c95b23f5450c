//! Chunks: the self-contained parts of a recording.
//!
//! A recording is a preamble followed by chunks. A preamble may also appear where a chunk may
//! begin, so that the concatenation of two recordings of one program is a recording.
//!
//! ```text
//! preamble
//!      0  magic          8 bytes
//!      8  version        2 bytes
//!     10  zero           2 bytes
//!
//! chunk
//!      0  kind           1 byte
//!      1  compression    1 byte
//!      2  zero           2 bytes
//!      4  stored         4 bytes
//!      8  raw            4 bytes
//!     12  events         4 bytes
//!     16  first event    8 bytes
//!     24  checksum       8 bytes
//!     32  payload        `stored` bytes
//! ```
//!
//! All integers are little-endian. `stored` and `raw` are the payload's length in bytes as stored
//! and after decompression; `compression` is 0 for none, 1 for an LZ4 block, 2 for a Zstandard
//! frame. `first event` is the index (from 0) of the chunk's first event, or the moment that a
//! chunk without events describes; `events` is the number of events. The checksum is XXH3 (64 bit)
//! of the 24 bytes before it and the payload.

use std::borrow::Cow;

use xxhash_rust::xxh3::Xxh3;

use crate::columns::max_decompressed_len;
use crate::compression::{Compression, Compressor, Decompressor};
use crate::error::FormatError;
use crate::varint::Reader;

/// The version of the recording format that this crate writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// The name of the recording format, as `vramscope info` shows it.
pub const FORMAT_NAME: &str = "vramscope";

/// The first bytes of every recording.
///
/// They are a byte that no text file contains, the letters `VRAM`, and line ends that a transfer in
/// text mode would change.
pub const MAGIC: [u8; 8] = *b"\x89VRAM\r\n\x1a";
/// Length in bytes of the preamble, with which a recording begins: the magic number, the format
/// version and two zeros.
pub(crate) const PREAMBLE_LEN: usize = 12;
/// Length in bytes of a chunk's header, which precedes the payload.
pub(crate) const HEADER_LEN: usize = 32;

/// The largest payload that a reader accepts in a chunk of any kind, in bytes. A chunk that claims
/// more is an error.
pub(crate) const MAX_CHUNK_LEN: usize = 64 << 20;

/// Lowest code of the optional chunk kinds, which a reader skips if it does not know them; an
/// unknown kind with a lower code is an error. No kind has the first byte of [`MAGIC`] as its code,
/// because that byte begins a preamble.
const OPTIONAL_FROM: u8 = 0x40;

/// The kind of content of a [`Chunk`]: metadata, definitions, events, a full state, annotations, or
/// a part of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChunkKind {
    /// The header chunk: the preamble, and [`RecordingInfo`](crate::RecordingInfo) as JSON.
    Header = 1,
    /// Definitions: strings, frames, stacks and sites.
    Definitions,
    /// Events.
    Events,
    /// A full state: all segments and blocks at one moment.
    State,
    /// Annotations.
    Annotations,
    /// The index: where each chunk is, and counters over time. Readers may skip it.
    Index = OPTIONAL_FROM,
    /// The position of the index, at the end of a file. Readers may skip it.
    End,
}

impl ChunkKind {
    /// Returns the byte that stands for this kind in a chunk's header.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the kind for which `code` stands in a chunk's header, or `None` if no kind has this
    /// code.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use ChunkKind::{Annotations, Definitions, End, Events, Header, Index, State};
        [Header, Definitions, Events, State, Annotations, Index, End].into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the largest payload, as stored or decompressed, that a reader accepts in a chunk of
    /// this kind, in bytes.
    ///
    /// Writers stay far below this limit. It prevents a small hostile file from decompressing to
    /// gigabytes.
    pub(crate) const fn max_payload_len(self) -> usize {
        match self {
            Self::State | Self::Index => MAX_CHUNK_LEN,
            _ => 2 << 20,
        }
    }
}

/// A complete chunk of a recording, ready to be written or sent.
///
/// The concatenated [`bytes`](Self::bytes) of an encoder's chunks are a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The kind of the chunk's payload.
    pub kind: ChunkKind,
    /// Index (from 0) of the chunk's first event; for a chunk without events, the moment that it
    /// describes.
    pub first_event: u64,
    /// Number of events in the chunk.
    pub events: u64,
    /// The chunk's bytes with its header. A header chunk begins with the preamble.
    pub bytes: Vec<u8>,
}

/// Returns the checksum (XXH3) of a chunk: of its header up to the checksum, and its stored
/// payload.
fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(payload);
    hash.digest()
}

/// Returns the preamble: the magic number and the format version at the start of a recording.
pub(crate) fn preamble() -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes
}

/// Checks the preamble at the start of `rest`, which is at byte `offset` of the stream. Returns
/// true if it is complete, false if more bytes are needed, and an error for another magic number or
/// format version.
pub(crate) fn check_preamble(rest: &[u8], offset: u64) -> Result<bool, FormatError> {
    let known = rest.len().min(MAGIC.len());
    if rest[..known] != MAGIC[..known] {
        return Err(FormatError::new(offset, "not a vramscope recording: it does not begin with the magic number"));
    }
    if rest.len() < PREAMBLE_LEN {
        return Ok(false);
    }
    let version = u16::from_le_bytes([rest[8], rest[9]]);
    if version != FORMAT_VERSION {
        let reason = format!(
            "recording format version {version}, but this vramscope reads version {FORMAT_VERSION}: \
             use a newer vramscope"
        );
        return Err(FormatError::new(offset + 8, reason));
    }
    Ok(true)
}

impl Chunk {
    /// Creates a chunk; compresses the payload unless its columns are compressed already.
    pub(crate) fn new(kind: ChunkKind, first_event: u64, events: u32, raw: &[u8], compressor: &mut Compressor) -> Self {
        let has_compressed_columns = std::mem::take(&mut compressor.has_compressed_columns);
        let compressed = (!has_compressed_columns).then(|| compressor.compress(raw));
        // A reader would reject a higher compression ratio.
        let is_accepted = |(_, stored): &(Compression, &[u8])| raw.len() <= max_decompressed_len(stored.len());
        let (compression, stored) = compressed.filter(is_accepted).unwrap_or((Compression::Uncompressed, raw));
        Self::from_stored(kind, compression, (first_event, events), raw.len(), stored)
    }

    /// Creates an uncompressed chunk without events. `moment` is the number of events before it.
    pub(crate) fn uncompressed(kind: ChunkKind, moment: u64, payload: &[u8]) -> Self {
        Self::from_stored(kind, Compression::Uncompressed, (moment, 0), payload.len(), payload)
    }

    /// Reads the chunk at the start of `bytes`. `offset` is the byte offset of `bytes` in the
    /// recording, which errors report.
    ///
    /// A preamble before the chunk belongs to it. Bytes after the chunk are ignored. Returns `None`
    /// if `bytes` end inside the chunk.
    ///
    /// # Errors
    /// If the bytes are not a chunk of a known kind, or the chunk is damaged.
    pub fn read(bytes: &[u8], offset: u64) -> Result<Option<Self>, FormatError> {
        let begin = if bytes.first() == Some(&MAGIC[0]) { PREAMBLE_LEN } else { 0 };
        if begin > 0 && !check_preamble(bytes, offset)? {
            return Ok(None);
        }
        let chunk = bytes.get(begin..).unwrap_or_default();
        let Some(header) = chunk.first_chunk() else { return Ok(None) };
        let (offset, header) = (offset + begin as u64, Header::parse(header, offset + begin as u64)?);
        let Some(chunk) = chunk.get(..HEADER_LEN + header.stored) else { return Ok(None) };
        header.check(chunk, offset)?;
        let kind = header.kind.ok_or_else(|| FormatError::new(offset, "chunk of unknown kind"))?;
        let bytes = bytes[..begin + chunk.len()].to_vec();
        Ok(Some(Self { kind, first_event: header.first_event, events: u64::from(header.events), bytes }))
    }

    /// Creates a chunk from its payload as stored: `stored` is the result of compressing `raw_len`
    /// bytes by `compression`. It has `events` events, the first with index `first_event` (from 0)
    /// in the recording.
    fn from_stored(
        kind: ChunkKind,
        compression: Compression,
        (first_event, events): (u64, u32),
        raw_len: usize,
        stored: &[u8],
    ) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_LEN + stored.len());
        bytes.extend_from_slice(&[kind.code(), compression.code(), 0, 0]);
        bytes.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(raw_len as u32).to_le_bytes());
        bytes.extend_from_slice(&events.to_le_bytes());
        bytes.extend_from_slice(&first_event.to_le_bytes());
        let sum = checksum(&bytes, stored);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(stored);
        Self { kind, first_event, events: u64::from(events), bytes }
    }
}

/// The decompressed payload of a chunk; borrowed from the chunk if that is not compressed as a
/// whole.
pub(crate) struct Payload<'a>(Cow<'a, [u8]>);

impl Payload<'_> {
    /// Returns all bytes of the payload, decompressed if the chunk is compressed as a whole.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a reader that starts at the payload's first byte.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::of_payload(&self.0, matches!(self.0, Cow::Owned(_)))
    }
}

/// A chunk whose checksum was verified, with its payload as stored: usually compressed.
#[derive(Clone, Debug)]
pub(crate) struct PackedChunk {
    pub(crate) kind: ChunkKind,
    pub(crate) first_event: u64,
    pub(crate) events: u32,
    /// Byte offset of the chunk in the recording.
    pub(crate) offset: u64,
    compression: Compression,
    /// Length of the payload after decompression, in bytes.
    raw_len: u32,
    /// The payload as stored.
    stored: Box<[u8]>,
}

impl PackedChunk {
    /// Parses the chunk at the start of `bytes`, which are at byte `offset` in the recording.
    /// Returns an error if the chunk is cut off, of an unknown kind, or does not match its
    /// checksum.
    pub(crate) fn parse(bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        let cut_off = || FormatError::new(offset, "the recording ends inside a chunk");
        let header = Header::parse(bytes.first_chunk().ok_or_else(cut_off)?, offset)?;
        let chunk = bytes.get(..HEADER_LEN + header.stored).ok_or_else(cut_off)?;
        header.check(chunk, offset)?;
        header.packed(chunk, offset).ok_or_else(|| {
            FormatError::new(offset, format!("chunk of unknown kind {} where the index lists a known kind", bytes[0]))
        })
    }

    /// Returns the bytes of the chunk as stored in the recording, header included.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let &Self { kind, compression, first_event, events, raw_len, ref stored, .. } = self;
        Chunk::from_stored(kind, compression, (first_event, events), raw_len as usize, stored).bytes
    }

    /// Returns the length of the chunk in the recording, header included, in bytes.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.stored.len()
    }

    /// Returns the payload, decompressed if the chunk is compressed as a whole.
    pub(crate) fn payload(&self, decompressor: &mut Decompressor) -> Result<Payload<'_>, FormatError> {
        if self.compression == Compression::Uncompressed {
            return Ok(Payload(Cow::Borrowed(&self.stored)));
        }
        let mut raw = Vec::new();
        let result = decompressor.decompress(self.compression, &self.stored, self.raw_len as usize, &mut raw);
        result.map_err(|reason| self.error(format!("the payload is damaged: {reason}")))?;
        Ok(Payload(Cow::Owned(raw)))
    }

    /// Returns an error with the message `reason` at the byte offset at which this chunk begins.
    pub(crate) fn error(&self, reason: impl Into<String>) -> FormatError {
        FormatError::new(self.offset, reason)
    }

    /// Returns the memory that this chunk occupies as stored, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.stored.len()
    }

    /// Returns the length of the chunk if it were not compressed as a whole, header included, in
    /// bytes.
    pub(crate) fn uncompressed_len(&self) -> usize {
        HEADER_LEN + self.raw_len as usize
    }
}

/// The parsed header of a chunk. Its kind and compression are `None` if this version of the program
/// does not know the stored codes.
pub(crate) struct Header {
    pub(crate) kind: Option<ChunkKind>,
    pub(crate) compression: Option<Compression>,
    /// Length of the payload as stored, in bytes.
    pub(crate) stored: usize,
    /// Length of the payload after decompression, in bytes.
    pub(crate) raw: u32,
    pub(crate) events: u32,
    pub(crate) first_event: u64,
    pub(crate) checksum: u64,
}

/// Returns the `N` bytes of `bytes` from index `at` on, to be decoded as a little-endian integer.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

impl Header {
    /// Parses the header of a chunk at byte `offset` of the recording, without verifying the
    /// checksum. Returns an error for an unknown kind that may not be skipped, and for lengths
    /// above the limits.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN], offset: u64) -> Result<Self, FormatError> {
        let code = bytes[0];
        let kind = ChunkKind::from_code(code);
        let header = Self {
            kind,
            compression: Compression::from_code(bytes[1]),
            stored: u32::from_le_bytes(bytes_at(bytes, 4)) as usize,
            raw: u32::from_le_bytes(bytes_at(bytes, 8)),
            events: u32::from_le_bytes(bytes_at(bytes, 12)),
            first_event: u64::from_le_bytes(bytes_at(bytes, 16)),
            checksum: u64::from_le_bytes(bytes_at(bytes, 24)),
        };
        let limit = kind.unwrap_or(ChunkKind::State).max_payload_len();
        let (stored, raw) = (header.stored, header.raw as usize);
        let is_uncompressed = header.compression == Some(Compression::Uncompressed);
        let reason = if kind.is_none() && code < OPTIONAL_FROM {
            format!("chunk of unknown kind {code}: a newer vramscope may read it")
        } else if stored.max(raw) > limit {
            format!("chunk of {} bytes, more than the {limit} that its kind may have", stored.max(raw))
        } else if kind.is_some() && header.compression.is_none() {
            format!("chunk with unknown compression {}", bytes[1])
        } else if kind.is_some() && is_uncompressed && stored != raw {
            "uncompressed chunk with two different lengths".to_owned()
        } else if kind.is_some() && !is_uncompressed && raw > max_decompressed_len(stored) {
            "implausibly high compression ratio of a chunk".to_owned()
        } else if header.first_event.checked_add(u64::from(header.events)).is_none() {
            "event numbers above 64 bits".to_owned()
        } else {
            return Ok(header);
        };
        Err(FormatError::new(offset, reason))
    }

    /// Returns an error unless `chunk`, the whole chunk, matches the checksum in this header. The
    /// error reports `offset`, the chunk's byte offset in the recording.
    pub(crate) fn check(&self, chunk: &[u8], offset: u64) -> Result<(), FormatError> {
        if checksum(&chunk[..24], &chunk[HEADER_LEN..]) == self.checksum {
            return Ok(());
        }
        Err(FormatError::new(offset, "the chunk's checksum does not match: the bytes were changed"))
    }

    /// Returns the chunk that this header belongs to; `None` if its kind is unknown. `chunk` is the
    /// whole chunk with its header, `offset` its byte offset in the recording.
    pub(crate) fn packed(&self, chunk: &[u8], offset: u64) -> Option<PackedChunk> {
        Some(PackedChunk {
            kind: self.kind?,
            first_event: self.first_event,
            events: self.events,
            offset,
            compression: self.compression?,
            raw_len: self.raw,
            stored: chunk[HEADER_LEN..].into(),
        })
    }
}
