//! Recordings with nothing in them that must fit something else: no lengths, no checksums, nothing packed.
//!
//! A fuzzer that changes a byte of a recording breaks a checksum, and one that inserts a byte a length, and no change gets behind either.
//! So it changes a sketch, and the recording is [built](build) of that. Marks say where a chunk and a column begin:
//!
//! ```text
//! chunk    | fe # K | kind | how | events (4) | first event (8) | what stands before the columns | columns
//! column   | fe # C | id | repeat | bytes
//! ```
//!
//! `first event` is a difference from the end of the chunk before, 0 where it follows. `how` says how the chunk (bits 0 and 1) and its columns
//! (bits 2 and 3; only where the chunk is not, unless bit 6 is set) are packed, that a preamble stands before it (bit 4), and that it lies about
//! its unpacked length (bit 5). `repeat` is the
//! power of two by which the bytes of a column are repeated, up to a limit, so that a short sketch makes a large column.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

const CHUNK_MARK: [u8; 3] = *b"\xfe#K";
const COLUMN_MARK: [u8; 3] = *b"\xfe#C";
const HEADER_LEN: usize = 32;
const PREAMBLE_LEN: usize = 12;
/// Unpacked bytes of all columns of a built recording: enough to show what grows faster than its input.
const MAX_BUILT_LEN: usize = 1 << 20;

/// The kinds of chunks that have columns, with how many integers, and then how many bytes, stand before them.
const PREFIXES: [(u8, usize, usize); 5] = [(2, 4, 0), (3, 2, 1), (4, 3, 0), (5, 1, 0), (INDEX, 5, 0)];
/// The kind of a chunk that says where everything is.
pub const INDEX: u8 = 0x40;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// Takes values off the front of bytes; zeros where there are none left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (now, later) = self.0.split_at(N.min(self.0.len()));
        self.0 = later;
        std::array::from_fn(|index| now.get(index).copied().unwrap_or(0))
    }
}

/// The pieces that stand behind each `mark`, with what stands before the first.
fn split<'a>(bytes: &'a [u8], mark: &'a [u8; 3]) -> (&'a [u8], Vec<&'a [u8]>) {
    let at: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(mark)).collect();
    let ends = at.iter().skip(1).copied().chain([bytes.len()]);
    let pieces = at.iter().zip(ends).map(|(&at, end)| &bytes[at + mark.len()..end]).collect();
    (&bytes[..at.first().copied().unwrap_or(bytes.len())], pieces)
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn pack(packing: u8, raw: &[u8]) -> (u8, Vec<u8>) {
    match packing {
        LZ4 => (LZ4, lz4_flex::block::compress(raw)),
        ZSTD => (ZSTD, zstd::bulk::compress(raw, 1).expect("memory is packed into memory")),
        _ => (PLAIN, raw.to_vec()),
    }
}

/// The payload of a chunk, of what a sketch has behind the fields of a chunk.
fn payload(body: &[u8], how: u8, room: &mut usize) -> Vec<u8> {
    let (prefix, columns) = split(body, &COLUMN_MARK);
    let mut payload = prefix.to_vec();
    for (index, column) in columns.into_iter().enumerate() {
        let mut fields = Fields(column);
        let [id, repeat] = fields.take();
        let once = fields.0;
        let times = (1usize << (repeat & 15)).min(*room / once.len().max(1)).max(1);
        let raw = once.repeat(times);
        *room = room.saturating_sub(raw.len());
        let packing = if how & 3 == 3 { index as u8 % 3 } else { how & 3 };
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

/// A chunk with the lengths and the checksum that its payload takes.
pub(crate) fn chunk(kind: u8, packing: u8, (first_event, events): (u64, u32), raw: &[u8], lie: u32) -> Vec<u8> {
    let (packing, stored) = pack(packing, raw);
    let mut bytes = vec![kind, packing, 0, 0];
    bytes.extend((stored.len() as u32).to_le_bytes());
    bytes.extend((raw.len() as u32).wrapping_add(lie).to_le_bytes());
    bytes.extend(events.to_le_bytes());
    bytes.extend(first_event.to_le_bytes());
    let mut hash = Xxh3::new();
    hash.update(&bytes);
    hash.update(&stored);
    bytes.extend(hash.digest().to_le_bytes());
    bytes.extend(stored);
    bytes
}

fn preamble() -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..8].copy_from_slice(&vramscope_trace::MAGIC);
    bytes[8..10].copy_from_slice(&vramscope_trace::FORMAT_VERSION.to_le_bytes());
    bytes
}

/// The recording that a sketch is of. Any bytes are a sketch.
#[must_use]
pub fn build(sketch: &[u8]) -> Vec<u8> {
    let mut bytes = preamble().to_vec();
    let mut room = MAX_BUILT_LEN;
    let mut next_event = 0u64;
    for piece in split(sketch, &CHUNK_MARK).1 {
        let mut fields = Fields(piece);
        let [kind, how] = fields.take();
        let events = u32::from_le_bytes(fields.take());
        let first_event = next_event.wrapping_add(u64::from_le_bytes(fields.take()));
        // In a chunk that is packed as a whole no column may be.
        let within = if how & 0x43 == 0 || how & 0x40 != 0 { how >> 2 } else { 0 };
        let raw = payload(fields.0, within, &mut room);
        if how & 0x10 != 0 {
            bytes.extend(preamble());
        }
        bytes.extend(chunk(kind, how & 3, (first_event, events), &raw, u32::from(how >> 5 & 1)));
        if matches!(kind, 3 | 4) {
            next_event = first_event.wrapping_add(u64::from(events));
        }
    }
    bytes
}

/// The payload of an index, of a sketch that has nothing before what stands before the columns.
#[must_use]
pub fn build_payload(sketch: &[u8], how: u8) -> Vec<u8> {
    payload(sketch, how, &mut { MAX_BUILT_LEN })
}

/// A recording that is taken apart; what it holds was checked when it was written.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len);
        self.0 = later;
        now
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

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

fn unpack(packing: u8, stored: &[u8], raw_len: usize) -> Vec<u8> {
    match packing {
        LZ4 => lz4_flex::block::decompress(stored, raw_len).expect("a sound recording"),
        ZSTD => zstd::bulk::decompress(stored, raw_len).expect("a sound recording"),
        _ => stored.to_vec(),
    }
}

/// The sketch of a payload of a chunk of this kind.
#[must_use]
pub fn of_payload(kind: u8, payload: &[u8]) -> Vec<u8> {
    let Some(&(_, integers, bytes)) = PREFIXES.iter().find(|prefix| prefix.0 == kind) else { return payload.to_vec() };
    let mut parts = Parts(payload);
    for _ in 0..integers {
        parts.varint();
    }
    parts.bytes(bytes);
    let mut sketch = payload[..payload.len() - parts.0.len()].to_vec();
    while !parts.0.is_empty() {
        let (id, packing) = (parts.byte(), parts.byte());
        let raw_len = parts.varint();
        let stored_len = if packing == PLAIN { raw_len } else { parts.varint() };
        sketch.extend(COLUMN_MARK);
        sketch.extend([id, 0]);
        sketch.extend(unpack(packing, parts.bytes(stored_len), raw_len));
    }
    sketch
}

/// A chunk as it stands in a recording.
struct Stored<'a> {
    header: [u8; HEADER_LEN],
    bytes: &'a [u8],
}

impl Stored<'_> {
    fn events(&self) -> u32 {
        u32::from_le_bytes(Fields(&self.header[12..]).take())
    }

    fn first_event(&self) -> u64 {
        u64::from_le_bytes(Fields(&self.header[16..]).take())
    }

    fn payload(&self) -> Vec<u8> {
        unpack(self.header[1], self.bytes, u32::from_le_bytes(Fields(&self.header[8..]).take()) as usize)
    }
}

/// The chunks of a sound recording.
fn stored(recording: &[u8]) -> impl Iterator<Item = Stored<'_>> {
    let mut parts = Parts(recording);
    std::iter::from_fn(move || {
        while parts.0.first() == Some(&vramscope_trace::MAGIC[0]) {
            parts.bytes(PREAMBLE_LEN);
        }
        (!parts.0.is_empty()).then(|| {
            let header: [u8; HEADER_LEN] = Fields(parts.bytes(HEADER_LEN)).take();
            let bytes = parts.bytes(u32::from_le_bytes(Fields(&header[4..]).take()) as usize);
            Stored { header, bytes }
        })
    })
}

/// The payload of the index of a sound recording, unpacked; that of the first, if it has several.
#[must_use]
pub fn index_payload(recording: &[u8]) -> Option<Vec<u8>> {
    stored(recording).find(|chunk| chunk.header[0] == INDEX).map(|chunk| chunk.payload())
}

/// The numbers of the events of chunks which say that all of theirs fit what was known before; of a recording whose chunks can be read.
pub(crate) fn fitting(recording: &[u8]) -> Vec<Range<u64>> {
    /// The kind of a chunk of events, and the bit by which it says so.
    const EVENTS: u8 = 3;
    const FITS: u8 = 2;
    let of_chunk = |chunk: Stored<'_>| {
        if chunk.header[0] != EVENTS {
            return None;
        }
        let payload = chunk.payload();
        let mut parts = Parts(&payload);
        parts.varint();
        parts.varint();
        let (first, count) = (chunk.first_event(), u64::from(chunk.events()));
        (parts.byte() & FITS != 0).then(|| first..first + count)
    };
    stored(recording).filter_map(of_chunk).collect()
}

/// The sketch of a sound recording, to be packed anew as `how` says.
#[must_use]
pub fn of(recording: &[u8], how: u8) -> Vec<u8> {
    let mut sketch = Vec::new();
    let mut next_event = 0u64;
    for chunk in stored(recording) {
        let kind = chunk.header[0];
        sketch.extend(CHUNK_MARK);
        sketch.extend([kind, how]);
        sketch.extend(chunk.events().to_le_bytes());
        sketch.extend(chunk.first_event().wrapping_sub(next_event).to_le_bytes());
        sketch.extend(of_payload(kind, &chunk.payload()));
        if matches!(kind, 3 | 4) {
            next_event = chunk.first_event().wrapping_add(u64::from(chunk.events()));
        }
    }
    sketch
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Recording;

    use super::*;

    #[test]
    fn a_sketch_is_of_its_recording() {
        for bytes in crate::seeds::recordings() {
            let open = |bytes: &[u8]| {
                let mut recording = Recording::new();
                recording.push(bytes).expect("a sound recording");
                recording.finish().expect("a whole one");
                recording
            };
            let recording = open(&bytes);
            for how in [0, 0b0100, 0b1000, 0b1101, 0b1_1100, 0b10] {
                let built = open(&build(&of(&bytes, how)));
                assert_eq!(built.end_state(), recording.end_state(), "{how}");
                assert_eq!(built.definitions(), recording.definitions(), "{how}");
                assert_eq!(built.events(), recording.events(), "{how}");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_sketch() {
        for bytes in [
            &b""[..],
            b"\xfe#K",
            b"\xfe#K\x03\xff\xfe#C",
            b"\xfe#C\x01\x0fx",
            b"\xfe#K\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xfe#C\0\x0fab",
        ] {
            let _ = Recording::new().push(&build(bytes));
        }
        let long = build(b"\xfe#K\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xfe#C\0\x0fab");
        assert!(long.len() > 2 << 15 && long.len() < 2 * MAX_BUILT_LEN, "columns are repeated, up to a limit");
    }
}
