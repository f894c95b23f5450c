//! Chunks: the independent pieces that a recording is made of.
//!
//! A recording is a preamble and then chunks. Where a chunk may begin a preamble may stand again, so that two recordings of one
//! program, one behind the other, are one recording.
//!
//! ```text
//! preamble   0        8          10      12
//!            | magic  | version  | zero  |
//!
//! chunk      0      1         2      4         8       12       16            24         32
//!            | kind | packing | zero | stored  | raw   | events | first event | checksum | payload (stored bytes) |
//! ```
//!
//! All integers are little-endian. `stored` and `raw` are the payload's bytes as it stands and after decompression; `packing` is 0 for
//! as it is, 1 for an LZ4 block, 2 for a Zstandard frame. `first event` is the number of the first event in the chunk, or the moment that it speaks
//! of, and `events` how many it holds. The checksum is XXH3 (64 bit) of the 24 bytes before it and the payload.

use std::borrow::Cow;

use xxhash_rust::xxh3::Xxh3;

use crate::columns::expanded;
use crate::error::FormatError;
use crate::pack::{Packer, Packing, Unpacker};
use crate::varint::Reader;

/// The version of the format that this crate writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// The name of the format.
pub const FORMAT_NAME: &str = "vramscope";

/// A byte that no text file has, the name, and line ends that a text transfer would change.
pub const MAGIC: [u8; 8] = *b"\x89VRAM\r\n\x1a";
/// Bytes of the preamble.
pub(crate) const PREAMBLE_LEN: usize = 12;
/// Bytes of a chunk before its payload.
pub(crate) const HEADER_LEN: usize = 32;

/// The largest payload of any chunk.
pub(crate) const MAX_CHUNK_LEN: usize = 64 << 20;

/// Kinds from here on may be skipped by a reader that does not know them. The first byte of [`MAGIC`] is never one: where a chunk may
/// begin, it begins a preamble.
const OPTIONAL_FROM: u8 = 0x40;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkKind {
    /// The preamble, and [`Info`](crate::Info) as JSON.
    Head,
    /// Strings, frames, stacks and sites.
    Definitions,
    /// Events.
    Events,
    /// The whole memory state at one moment.
    State,
    /// Annotations.
    Annotations,
    /// Where everything is; may be skipped.
    Index,
    /// Where the index is; may be skipped.
    End,
}

impl ChunkKind {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Head => 1,
            Self::Definitions => 2,
            Self::Events => 3,
            Self::State => 4,
            Self::Annotations => 5,
            Self::Index => OPTIONAL_FROM,
            Self::End => OPTIONAL_FROM + 1,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use ChunkKind::{Annotations, Definitions, End, Events, Head, Index, State};
        [Head, Definitions, Events, State, Annotations, Index, End].into_iter().find(|kind| kind.code() == code)
    }

    /// The largest payload that a reader takes, decompressed. A writer stays far below; the bound keeps a few hostile bytes from
    /// becoming gigabytes.
    pub(crate) const fn max_raw(self) -> usize {
        match self {
            Self::State | Self::Index => MAX_CHUNK_LEN,
            _ => 2 << 20,
        }
    }
}

/// A complete piece of a recording, ready to be written or sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What it holds.
    pub kind: ChunkKind,
    /// The number of its first event, or the moment it speaks of.
    pub first_event: u64,
    /// How many events it holds.
    pub events: u64,
    /// Its bytes, header included.
    pub bytes: Vec<u8>,
}

fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    hash.update(payload);
    hash.digest()
}

/// The twelve bytes that a recording begins with.
pub(crate) fn preamble() -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes
}

impl Chunk {
    /// Packs a payload, as a whole where its columns are not packed already.
    pub(crate) fn pack(kind: ChunkKind, first_event: u64, events: u32, raw: &[u8], packer: &mut Packer) -> Self {
        let (packing, stored) = match std::mem::take(&mut packer.has_packed_columns) {
            true => (Packing::Plain, raw),
            false => packer.pack(raw),
        };
        // So regular that a reader would refuse it.
        let (packing, stored) =
            if raw.len() > expanded(stored.len()) { (Packing::Plain, raw) } else { (packing, stored) };
        Self::of(kind, packing, (first_event, events), raw.len(), stored)
    }

    /// A chunk that is of a moment and not packed.
    pub(crate) fn plain(kind: ChunkKind, moment: u64, payload: &[u8]) -> Self {
        Self::of(kind, Packing::Plain, (moment, 0), payload.len(), payload)
    }

    /// The chunk that `bytes` begin with, and the preamble where one stands before it; `None` where they end inside it. They stand at
    /// `offset` in the recording.
    ///
    /// # Errors
    /// Where they are no chunk of a kind that is known, or it is damaged.
    pub fn read(bytes: &[u8], offset: u64) -> Result<Option<Self>, FormatError> {
        let begin = if bytes.first() == Some(&MAGIC[0]) { PREAMBLE_LEN } else { 0 };
        if begin > 0 && !ChunkReader::check_preamble(bytes, offset)? {
            return Ok(None);
        }
        let chunk = bytes.get(begin..).unwrap_or_default();
        let Some(header) = chunk.first_chunk() else { return Ok(None) };
        let (offset, header) = (offset + begin as u64, Header::parse(header, offset + begin as u64)?);
        let Some(chunk) = chunk.get(..HEADER_LEN + header.stored) else { return Ok(None) };
        header.check(chunk, offset)?;
        let kind = header.kind.ok_or_else(|| FormatError::new(offset, "a chunk of a kind that is not known"))?;
        let bytes = bytes[..begin + chunk.len()].to_vec();
        Ok(Some(Self { kind, first_event: header.first_event, events: u64::from(header.events), bytes }))
    }

    fn of(kind: ChunkKind, packing: Packing, (first_event, events): (u64, u32), raw_len: usize, stored: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_LEN + stored.len());
        bytes.extend_from_slice(&[kind.code(), packing.code(), 0, 0]);
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

/// What a chunk holds; owned where it was packed as a whole.
pub(crate) struct Payload<'a>(Cow<'a, [u8]>);

impl Payload<'_> {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads from the first byte.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::of_payload(&self.0, matches!(self.0, Cow::Owned(_)))
    }
}

/// A chunk as read: checked, its payload still compressed.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(crate) kind: ChunkKind,
    pub(crate) first_event: u64,
    pub(crate) events: u32,
    /// Where in the stream the chunk begins.
    pub(crate) offset: u64,
    packing: Packing,
    raw_len: u32,
    stored: Box<[u8]>,
}

impl Packed {
    /// A chunk that is all of `bytes`, which stand at `offset`.
    pub(crate) fn parse(bytes: &[u8], offset: u64) -> Result<Self, FormatError> {
        let short = || FormatError::new(offset, "the recording ends inside a chunk");
        let header = Header::parse(bytes.first_chunk().ok_or_else(short)?, offset)?;
        let chunk = bytes.get(..HEADER_LEN + header.stored).ok_or_else(short)?;
        header.check(chunk, offset)?;
        let (kind, packing) = header.kind.zip(header.packing).ok_or_else(|| {
            FormatError::new(offset, format!("a chunk of the unknown kind {}, where one that is known was", bytes[0]))
        })?;
        Ok(header.packed(kind, packing, chunk, offset))
    }

    /// The chunk as it stands in the recording.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        Chunk::of(self.kind, self.packing, (self.first_event, self.events), self.raw_len as usize, &self.stored).bytes
    }

    /// Bytes of the chunk in the recording.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.stored.len()
    }

    /// The payload.
    pub(crate) fn payload(&self, unpacker: &mut Unpacker) -> Result<Payload<'_>, FormatError> {
        if self.packing == Packing::Plain {
            return Ok(Payload(Cow::Borrowed(&self.stored)));
        }
        let mut raw = Vec::new();
        let unpacked = unpacker.unpack(self.packing, &self.stored, self.raw_len as usize, &mut raw);
        unpacked.map_err(|what| self.error(format!("the payload is damaged: {what}")))?;
        Ok(Payload(Cow::Owned(raw)))
    }

    pub(crate) fn error(&self, what: impl Into<String>) -> FormatError {
        FormatError::new(self.offset, what)
    }

    /// Bytes of memory that it occupies.
    pub(crate) fn size_in_memory(&self) -> usize {
        size_of::<Self>() + self.stored.len()
    }

    /// Bytes of the chunk as it was before compression.
    pub(crate) fn size_unpacked(&self) -> usize {
        HEADER_LEN + self.raw_len as usize
    }
}

struct Header {
    kind: Option<ChunkKind>,
    packing: Option<Packing>,
    stored: usize,
    raw: u32,
    events: u32,
    first_event: u64,
    checksum: u64,
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

impl Header {
    fn parse(bytes: &[u8; HEADER_LEN], offset: u64) -> Result<Self, FormatError> {
        let code = bytes[0];
        let kind = ChunkKind::from_code(code);
        let header = Self {
            kind,
            packing: Packing::from_code(bytes[1]),
            stored: u32::from_le_bytes(le(bytes, 4)) as usize,
            raw: u32::from_le_bytes(le(bytes, 8)),
            events: u32::from_le_bytes(le(bytes, 12)),
            first_event: u64::from_le_bytes(le(bytes, 16)),
            checksum: u64::from_le_bytes(le(bytes, 24)),
        };
        if kind.is_none() && code < OPTIONAL_FROM {
            return Err(FormatError::new(
                offset,
                format!("a chunk of the unknown kind {code}; a newer vramscope may read it"),
            ));
        }
        let limit = kind.map_or(ChunkKind::State, |kind| kind).max_raw();
        if header.stored > limit || header.raw as usize > limit {
            return Err(FormatError::new(
                offset,
                format!("a chunk of {} bytes; its kind may have {limit}", header.raw.max(header.stored as u32)),
            ));
        }
        if kind.is_some() && header.packing.is_none() {
            return Err(FormatError::new(offset, format!("a chunk packed in the unknown way {}", bytes[1])));
        }
        if header.packing == Some(Packing::Plain) && kind.is_some() && header.stored != header.raw as usize {
            return Err(FormatError::new(offset, "a chunk that is not packed and yet has two lengths"));
        }
        if kind.is_some() && header.packing != Some(Packing::Plain) && header.raw as usize > expanded(header.stored) {
            return Err(FormatError::new(offset, "a chunk of very many bytes packed into very few"));
        }
        if header.first_event.checked_add(u64::from(header.events)).is_none() {
            return Err(FormatError::new(offset, "event numbers of more than 64 bits"));
        }
        Ok(header)
    }
}

impl Header {
    fn check(&self, chunk: &[u8], offset: u64) -> Result<(), FormatError> {
        if checksum(&chunk[..24], &chunk[HEADER_LEN..]) == self.checksum {
            return Ok(());
        }
        Err(FormatError::new(offset, "the chunk's checksum does not match: the bytes were changed"))
    }

    fn packed(&self, kind: ChunkKind, packing: Packing, chunk: &[u8], offset: u64) -> Packed {
        Packed {
            kind,
            first_event: self.first_event,
            events: self.events,
            offset,
            packing,
            raw_len: self.raw,
            stored: chunk[HEADER_LEN..].into(),
        }
    }
}

/// Takes bytes, cut anywhere, and gives whole chunks.
#[derive(Debug, Default)]
pub(crate) struct ChunkReader {
    buffer: Vec<u8>,
    /// How much of `buffer` is used up.
    used: usize,
    /// Where in the stream `buffer[used]` stands.
    offset: u64,
    /// Whether the preamble has come.
    begun: bool,
    /// Whether the head has come.
    headed: bool,
    failed: Option<FormatError>,
}

impl ChunkReader {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            // Used bytes go only when they are the greater part, so that many small pushes do not move the rest each time.
            if self.used > self.buffer.len() / 2 {
                self.buffer.drain(..self.used);
                self.used = 0;
            }
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole chunk of a kind that is known; `None` until more bytes come. After an error always that error.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<Packed>, FormatError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.scan();
        if let Err(error) = &result {
            self.fail(error.clone());
        }
        result
    }

    /// Ends the reading: what follows cannot be understood.
    pub(crate) fn fail(&mut self, error: FormatError) {
        self.failed = Some(error);
        self.buffer = Vec::new();
        self.used = 0;
    }

    fn scan(&mut self) -> Result<Option<Packed>, FormatError> {
        loop {
            let rest = &self.buffer[self.used..];
            if !self.begun || rest.first() == Some(&MAGIC[0]) {
                if !Self::check_preamble(rest, self.offset)? {
                    return Ok(None);
                }
                self.begun = true;
                self.advance(PREAMBLE_LEN);
                continue;
            }
            let Some(header_bytes) = rest.first_chunk::<HEADER_LEN>() else { return Ok(None) };
            let offset = self.offset;
            let header = Header::parse(header_bytes, offset)?;
            let length = HEADER_LEN + header.stored;
            let Some(chunk) = rest.get(..length) else { return Ok(None) };
            header.check(chunk, offset)?;
            let packed =
                header.kind.zip(header.packing).map(|(kind, packing)| header.packed(kind, packing, chunk, offset));
            if !self.headed && header.kind != Some(ChunkKind::Head) {
                return Err(FormatError::new(offset, "the first chunk is not the head"));
            }
            self.headed = true;
            self.advance(length);
            if packed.is_some() {
                return Ok(packed);
            }
        }
    }

    fn check_preamble(rest: &[u8], offset: u64) -> Result<bool, FormatError> {
        let known = rest.len().min(MAGIC.len());
        if rest[..known] != MAGIC[..known] {
            return Err(FormatError::new(
                offset,
                "not a vramscope recording: the first bytes are not its magic number",
            ));
        }
        if rest.len() < PREAMBLE_LEN {
            return Ok(false);
        }
        let version = u16::from_le_bytes([rest[8], rest[9]]);
        if version != FORMAT_VERSION {
            let what =
                format!("version {version} of the recording format; this vramscope reads version {FORMAT_VERSION}");
            return Err(FormatError::new(offset + 8, what));
        }
        Ok(true)
    }

    fn advance(&mut self, by: usize) {
        self.used += by;
        self.offset += by as u64;
    }

    /// An error if the bytes so far end inside the preamble or a chunk.
    pub(crate) fn finish(&self) -> Result<(), FormatError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let rest = self.buffer.len() - self.used;
        if !self.headed {
            return Err(FormatError::new(self.offset + rest as u64, "the recording ends before its first chunk"));
        }
        if rest > 0 {
            let what = format!(
                "the recording ends inside a chunk, {rest} bytes after it begins; everything before it is whole"
            );
            return Err(FormatError::new(self.offset, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Definition, Encoder, Info, Sink};

    #[test]
    fn chunks_are_read_as_they_were_made() {
        let mut encoder = Encoder::new(&Info::default());
        encoder.define(&Definition::String("a name".to_owned()));
        encoder.flush();
        for made in encoder.take_output() {
            let with_more = [made.bytes.as_slice(), b"and more"].concat();
            assert_eq!(Chunk::read(&with_more, 7), Ok(Some(made.clone())));
            for len in 0..made.bytes.len() {
                assert_eq!(Chunk::read(&made.bytes[..len], 7), Ok(None), "{len} bytes");
            }
            let mut damaged = made.bytes.clone();
            damaged[made.bytes.len() - 1] ^= 1;
            assert!(Chunk::read(&damaged, 7).is_err());
        }
    }
}
