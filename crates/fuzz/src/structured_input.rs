//! Builds recordings from inputs without lengths, checksums and compression.
//!
//! If a fuzzer changes a byte of a recording, a checksum no longer matches; if it inserts a byte, a
//! length no longer matches. A structured input has neither checksums nor lengths;
//! [`build`] makes a recording from it. Markers begin chunks and columns:
//!
//! ```text
//! chunk    | fe # K | kind | flags | events (4) | first event (8) | prefix | columns
//! column   | fe # C | id | repeat | bytes
//! ```
//!
//! `first event` is relative to the end of the previous chunk. `flags` select the compression of
//! the chunk (bits 0 and 1) and of its columns (bits 2 and 3; only if the chunk is not compressed,
//! unless bit 6 is set), a preamble before the chunk (bit 4), and a wrong unpacked length (bit 5).
//! `repeat` is the power of two by which the bytes of a column are repeated, up to a limit, so that
//! a short input builds a large column.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

/// The marker that begins a chunk of a structured input.
const CHUNK_MARK: [u8; 3] = *b"\xfe#K";
/// The marker that begins a column of a structured input.
const COLUMN_MARK: [u8; 3] = *b"\xfe#C";
/// Length of a chunk's header in a recording, in bytes.
const HEADER_LEN: usize = 32;
/// Length of a recording's preamble, in bytes.
const PREAMBLE_LEN: usize = 12;
/// Maximum size of all columns of a built recording before compression, in bytes. It is large
/// enough to reveal readers whose memory grows faster than the recording.
pub(crate) const MAX_BUILT_LEN: usize = 1 << 20;

/// The kinds of chunks with columns, each with the number of integers and of bytes before its
/// columns.
const PREFIXES: [(u8, usize, usize); 5] = [(2, 4, 0), (3, 2, 1), (4, 3, 0), (5, 1, 0), (INDEX, 5, 0)];
/// The kind of an index chunk.
pub const INDEX: u8 = 0x40;

/// Code of the packing (compression) `none`.
const PLAIN: u8 = 0;
/// Code of the packing as an LZ4 block.
const LZ4: u8 = 1;
/// Code of the packing as a zstd frame.
const ZSTD: u8 = 2;

/// A reader that takes values from the front of a structured input. Behind its end, all bytes are
/// 0.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `N` bytes.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        self.0 = later;
        std::array::from_fn(|index| now.get(index).copied().unwrap_or(0))
    }
}

/// Splits bytes at each `mark`. Returns the part before the first mark and the part after each.
fn split<'a>(bytes: &'a [u8], mark: &'a [u8; 3]) -> (&'a [u8], Vec<&'a [u8]>) {
    let at: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(mark)).collect();
    let ends = at.iter().skip(1).copied().chain([bytes.len()]);
    let pieces = at.iter().zip(ends).map(|(&at, end)| &bytes[at + mark.len()..end]).collect();
    (&bytes[..at.first().copied().unwrap_or(bytes.len())], pieces)
}

/// Appends a number in groups of 7 bits, the lowest first (LEB128). The high bit is set in all
/// bytes except the last.
fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Compresses data. Returns the stored bytes and their packing, which is [`PLAIN`] if `packing` is
/// unknown.
fn pack(packing: u8, raw: &[u8]) -> (u8, Vec<u8>) {
    match packing {
        LZ4 => (LZ4, lz4_flex::block::compress(raw)),
        ZSTD => (ZSTD, zstd::bulk::compress(raw, 1).expect("compression in memory does not fail")),
        _ => (PLAIN, raw.to_vec()),
    }
}

/// Builds the payload of a chunk from its prefix and columns. `remaining` is the number of bytes
/// left for columns before compression; the columns' bytes are subtracted.
fn payload(body: &[u8], packing_flags: u8, remaining: &mut usize) -> Vec<u8> {
    let (prefix, columns) = split(body, &COLUMN_MARK);
    let mut payload = prefix.to_vec();
    for (index, column) in columns.into_iter().enumerate() {
        let mut fields = Fields(column);
        let [id, repeat] = fields.take();
        let content = fields.0;
        let times = (1usize << (repeat & 15)).min(*remaining / content.len().max(1)).max(1);
        let raw = content.repeat(times);
        *remaining = remaining.saturating_sub(raw.len());
        let packing = if packing_flags & 3 == 3 { index as u8 % 3 } else { packing_flags & 3 };
        let (packing, stored) = pack(packing, &raw);
        payload.extend([id, packing]);
        put_varint(&mut payload, raw.len());
        if packing != PLAIN {
            put_varint(&mut payload, stored.len());
        }
        payload.extend(stored);
    }
    payload
}

/// Builds a chunk with a matching length and checksum. `raw` is its payload before compression.
/// `length_error` is added to the payload's unpacked length in the header.
pub(crate) fn chunk(
    kind: u8,
    packing: u8,
    (first_event, events): (u64, u32),
    raw: &[u8],
    length_error: u32,
) -> Vec<u8> {
    let (packing, stored) = pack(packing, raw);
    let mut bytes = vec![kind, packing, 0, 0];
    bytes.extend((stored.len() as u32).to_le_bytes());
    bytes.extend((raw.len() as u32).wrapping_add(length_error).to_le_bytes());
    bytes.extend(events.to_le_bytes());
    bytes.extend(first_event.to_le_bytes());
    let mut hash = Xxh3::new();
    hash.update(&bytes);
    hash.update(&stored);
    bytes.extend(hash.digest().to_le_bytes());
    bytes.extend(stored);
    bytes
}

/// Returns the preamble of a recording of the current version.
fn preamble() -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..8].copy_from_slice(&vramscope_trace::MAGIC);
    bytes[8..10].copy_from_slice(&vramscope_trace::FORMAT_VERSION.to_le_bytes());
    bytes
}

/// Builds the recording of a structured input. Any bytes are valid input.
#[must_use]
pub fn build(input: &[u8]) -> Vec<u8> {
    let mut bytes = preamble().to_vec();
    let mut remaining = MAX_BUILT_LEN;
    let mut next_event = 0u64;
    for piece in split(input, &CHUNK_MARK).1 {
        let mut fields = Fields(piece);
        let [kind, packing_flags] = fields.take();
        let events = u32::from_le_bytes(fields.take());
        let first_event = next_event.wrapping_add(u64::from_le_bytes(fields.take()));
        // The columns of a compressed chunk must not be compressed.
        let column_packing =
            if packing_flags & 0x43 == 0 || packing_flags & 0x40 != 0 { packing_flags >> 2 } else { 0 };
        let raw = payload(fields.0, column_packing, &mut remaining);
        if packing_flags & 0x10 != 0 {
            bytes.extend(preamble());
        }
        bytes.extend(chunk(kind, packing_flags & 3, (first_event, events), &raw, u32::from(packing_flags >> 5 & 1)));
        if matches!(kind, 3 | 4) {
            next_event = first_event.wrapping_add(u64::from(events));
        }
    }
    bytes
}

/// Builds the payload of an index from a structured input.
#[must_use]
pub fn build_payload(input: &[u8], packing_flags: u8) -> Vec<u8> {
    payload(input, packing_flags, &mut { MAX_BUILT_LEN })
}

/// A reader that takes values from the front of a valid recording. It panics behind the end.
struct RecordingReader<'a>(&'a [u8]);

impl<'a> RecordingReader<'a> {
    /// Returns the next `len` bytes.
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len);
        self.0 = later;
        now
    }

    /// Returns the next byte.
    fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    /// Returns the next number, as [`put_varint`] writes it.
    fn varint(&mut self) -> usize {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.byte();
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
}

/// Decompresses the stored bytes of a valid recording to `raw_len` bytes.
fn unpack(packing: u8, stored: &[u8], raw_len: usize) -> Vec<u8> {
    match packing {
        LZ4 => lz4_flex::block::decompress(stored, raw_len).expect("the recording is valid"),
        ZSTD => zstd::bulk::decompress(stored, raw_len).expect("the recording is valid"),
        _ => stored.to_vec(),
    }
}

/// Returns the structured input for a payload of a chunk of this kind.
#[must_use]
pub fn from_payload(kind: u8, payload: &[u8]) -> Vec<u8> {
    let Some(&(_, integers, bytes)) = PREFIXES.iter().find(|prefix| prefix.0 == kind) else { return payload.to_vec() };
    let mut reader = RecordingReader(payload);
    for _ in 0..integers {
        reader.varint();
    }
    reader.bytes(bytes);
    let mut input = payload[..payload.len() - reader.0.len()].to_vec();
    while !reader.0.is_empty() {
        let (id, packing) = (reader.byte(), reader.byte());
        let raw_len = reader.varint();
        let stored_len = if packing == PLAIN { raw_len } else { reader.varint() };
        input.extend(COLUMN_MARK);
        input.extend([id, 0]);
        input.extend(unpack(packing, reader.bytes(stored_len), raw_len));
    }
    input
}

/// A chunk of a recording: its header, and its payload as stored.
struct StoredChunk<'a> {
    header: [u8; HEADER_LEN],
    bytes: &'a [u8],
}

impl StoredChunk<'_> {
    /// Returns the number of events, from the header.
    fn events(&self) -> u32 {
        u32::from_le_bytes(Fields(&self.header[12..]).take())
    }

    /// Returns the number of the first event, from the header.
    fn first_event(&self) -> u64 {
        u64::from_le_bytes(Fields(&self.header[16..]).take())
    }

    /// Returns the payload, decompressed.
    fn payload(&self) -> Vec<u8> {
        unpack(self.header[1], self.bytes, u32::from_le_bytes(Fields(&self.header[8..]).take()) as usize)
    }
}

/// Iterates over the chunks of a valid recording.
fn chunks(recording: &[u8]) -> impl Iterator<Item = StoredChunk<'_>> {
    let mut reader = RecordingReader(recording);
    std::iter::from_fn(move || {
        while reader.0.first() == Some(&vramscope_trace::MAGIC[0]) {
            reader.bytes(PREAMBLE_LEN);
        }
        (!reader.0.is_empty()).then(|| {
            let header: [u8; HEADER_LEN] = Fields(reader.bytes(HEADER_LEN)).take();
            let bytes = reader.bytes(u32::from_le_bytes(Fields(&header[4..]).take()) as usize);
            StoredChunk { header, bytes }
        })
    })
}

/// Returns the unpacked payload of a valid recording's first index.
#[must_use]
pub fn index_payload(recording: &[u8]) -> Option<Vec<u8>> {
    chunks(recording).find(|chunk| chunk.header[0] == INDEX).map(|chunk| chunk.payload())
}

/// Returns the ranges of event numbers of the chunks that claim to be consistent, for a recording
/// whose chunks can be read.
pub(crate) fn claimed_consistent(recording: &[u8]) -> Vec<Range<u64>> {
    /// The kind of an event chunk.
    const EVENTS: u8 = 3;
    /// The flag by which an event chunk claims that its events are consistent.
    const CONSISTENT: u8 = 2;
    let of_chunk = |chunk: StoredChunk<'_>| {
        if chunk.header[0] != EVENTS {
            return None;
        }
        let payload = chunk.payload();
        let mut reader = RecordingReader(&payload);
        reader.varint();
        reader.varint();
        let (first, count) = (chunk.first_event(), u64::from(chunk.events()));
        (reader.byte() & CONSISTENT != 0).then(|| first..first + count)
    };
    chunks(recording).filter_map(of_chunk).collect()
}

/// Returns the structured input for a valid recording. `packing_flags` are the compression flags of
/// its chunks.
#[must_use]
pub fn from_recording(recording: &[u8], packing_flags: u8) -> Vec<u8> {
    let mut input = Vec::new();
    let mut next_event = 0u64;
    for chunk in chunks(recording) {
        let kind = chunk.header[0];
        input.extend(CHUNK_MARK);
        input.extend([kind, packing_flags]);
        input.extend(chunk.events().to_le_bytes());
        input.extend(chunk.first_event().wrapping_sub(next_event).to_le_bytes());
        input.extend(from_payload(kind, &chunk.payload()));
        if matches!(kind, 3 | 4) {
            next_event = chunk.first_event().wrapping_add(u64::from(chunk.events()));
        }
    }
    input
}
