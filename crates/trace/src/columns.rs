//! Columns: the values of one field, of all events or blocks of a chunk, one behind the other.
//!
//! A field's values are like each other, and pack several times better than the events do one by one.
//!
//! ```text
//! column   | id | packing | raw length | [stored length, unless the packing is 0] | bytes |
//! ```
//!
//! Columns stand in order of their ids, and one of no bytes is left out. A reader skips one whose id is 64 or more and that it does not
//! know; one below it must know. In a chunk of few bytes no column is packed, for the chunk is packed as a whole; in one that is packed as a
//! whole no column may be. Packed bytes may stand for so many at most (`expanded`), so that a small file does not become a large one.

use crate::pack::{Packer, Packing, Unpacker};
use crate::varint::{self, Malformed, Reader};

/// Unpacked bytes up to which a chunk is packed as a whole. Packed one by one 9 columns of less are the larger by their frames' heads.
const WHOLE_UP_TO: usize = 4 << 10;
/// Column ids from here on may be skipped.
const OPTIONAL_FROM: u8 = 0x40;
/// Unpacked bytes that any number of packed ones may stand for.
const FREE: usize = 64 << 10;
/// Unpacked bytes that each packed one may stand for beyond that. What real programs do packs to a twentieth at best.
const PER_BYTE: usize = 128;

/// How many bytes so many packed ones may stand for.
pub(crate) const fn expanded(packed: usize) -> usize {
    FREE.saturating_add(packed.saturating_mul(PER_BYTE))
}

/// The columns of a chunk that is being written, by id.
#[derive(Clone, Debug)]
pub(crate) struct ColumnsWriter<const N: usize> {
    columns: [Vec<u8>; N],
}

impl<const N: usize> Default for ColumnsWriter<N> {
    fn default() -> Self {
        Self { columns: std::array::from_fn(|_| Vec::new()) }
    }
}

impl<const N: usize> ColumnsWriter<N> {
    /// A column, to append to.
    #[inline]
    pub(crate) fn column(&mut self, id: u8) -> &mut Vec<u8> {
        &mut self.columns[usize::from(id)]
    }

    /// Unpacked bytes in all columns.
    pub(crate) fn len(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Appends the columns, each packed by itself where there is something to do it with and it is worth it, and empties them.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, packer: Option<&mut Packer>) {
        let len = self.len();
        let start = out.len();
        let mut packer = packer.filter(|_| len > WHOLE_UP_TO);
        self.put(out, packer.as_deref_mut());
        if let Some(packer) = packer {
            packer.has_packed_columns = true;
            if len > expanded(out.len() - start) {
                // So regular that a reader would refuse it.
                out.truncate(start);
                self.put(out, None);
            }
        }
        self.columns.iter_mut().for_each(Vec::clear);
    }

    fn put(&self, out: &mut Vec<u8>, mut packer: Option<&mut Packer>) {
        for (id, column) in self.columns.iter().enumerate().filter(|(_, column)| !column.is_empty()) {
            let (packing, bytes) = match &mut packer {
                Some(packer) => packer.pack(column),
                None => (Packing::Plain, column.as_slice()),
            };
            out.extend_from_slice(&[id as u8, packing.code()]);
            varint::put(out, column.len() as u64);
            if packing != Packing::Plain {
                varint::put(out, bytes.len() as u64);
            }
            out.extend_from_slice(bytes);
        }
    }
}

/// A column that was found.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    packing: Packing,
    stored: &'a [u8],
    raw_len: usize,
    /// Where in the payload it begins.
    at: usize,
}

/// The columns of a chunk, by id, unpacked.
#[derive(Clone, Debug)]
pub(crate) struct Columns<const N: usize> {
    bytes: Vec<u8>,
    /// Where in `bytes` each ends, and where in the payload it began.
    ends: [(usize, usize); N],
}

impl<const N: usize> Columns<N> {
    /// Reads all columns that are left of a payload. Where no more than `max_len` unpacked bytes are expected, more are refused.
    pub(crate) fn read(reader: &mut Reader<'_>, unpacker: &mut Unpacker, max_len: usize) -> Result<Self, Malformed> {
        let max_len = max_len.min(expanded(reader.remaining()));
        let mut found: [Option<Found<'_>>; N] = [None; N];
        let mut next = 0u16;
        let mut len = 0usize;
        while reader.remaining() > 0 {
            let at = reader.at();
            let id = reader.byte()?;
            if u16::from(id) < next {
                return Err(reader.malformed("columns that are not in order"));
            }
            next = u16::from(id) + 1;
            let packing =
                Packing::from_code(reader.byte()?).ok_or(reader.malformed("a column packed in an unknown way"))?;
            let raw_len = reader.u64()?;
            let stored_len = if packing == Packing::Plain { raw_len } else { reader.u64()? };
            let stored = reader.bytes(stored_len)?;
            let raw_len = usize::try_from(raw_len).unwrap_or(usize::MAX);
            if let Some(place) = found.get_mut(usize::from(id)) {
                len = len.saturating_add(raw_len);
                if reader.is_unpacked() && packing != Packing::Plain {
                    return Err(reader.malformed("a packed column in a chunk that is packed as a whole"));
                }
                if len > max_len {
                    return Err(reader.malformed("columns of more bytes than their chunk may have"));
                }
                *place = Some(Found { packing, stored, raw_len, at });
            } else if id < OPTIONAL_FROM {
                return Err(reader.malformed("a column that this vramscope does not know"));
            }
        }
        let mut bytes = Vec::with_capacity(len);
        let mut ends = [(0, 0); N];
        for (end, found) in ends.iter_mut().zip(found) {
            if let Some(Found { packing, stored, raw_len, at }) = found {
                let unpacked = unpacker.unpack(packing, stored, raw_len, &mut bytes);
                unpacked.map_err(|_| Malformed { at, what: "a column that does not unpack to what it promises" })?;
                end.1 = at;
            }
            end.0 = bytes.len();
        }
        Ok(Self { bytes, ends })
    }

    /// A column, from its beginning; empty where there is none.
    pub(crate) fn column(&self, id: u8) -> Reader<'_> {
        let id = usize::from(id);
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before].0);
        Reader::within(&self.bytes[start..self.ends[id].0], self.ends[id].1)
    }
}
