//! Columns: the values of one field for all events or blocks of a chunk, stored together.
//!
//! The values of one field are similar, so they compress several times better than whole events.
//!
//! ```text
//! column   | id | compression | length | [stored length, unless compression is 0] | bytes |
//! ```
//!
//! Columns are in the order of their ids; empty columns are left out. A reader skips unknown
//! columns with an id of 64 or more and rejects unknown columns with a lower id. In a small chunk
//! no column is compressed, because the chunk is compressed as a whole; in a chunk that is
//! compressed as a whole, no column may be. The decompressed length is bounded by the stored length
//! ([`max_decompressed_len`]), so that a small file cannot become a large one.

use crate::compression::{Compression, Compressor, Decompressor};
use crate::varint::{self, PayloadError, Reader};

/// Maximum number of uncompressed bytes, in all columns together, of a chunk that is compressed as
/// a whole. In larger chunks each column is compressed on its own; in smaller ones, a compressed
/// frame header for every column would cost too much.
const COMPRESS_WHOLE_UP_TO: usize = 4 << 10;
/// Lowest id of the optional columns, which a reader skips if it does not know them; an unknown
/// column with a lower id is an error.
const OPTIONAL_FROM: u8 = 0x40;
/// Number of decompressed bytes that a reader accepts however short the input is; for every stored
/// byte it accepts [`MAX_RATIO`] more.
const ALWAYS_ACCEPTED: usize = 64 << 10;
/// Decompressed bytes that a reader accepts for each stored byte, in addition to
/// [`ALWAYS_ACCEPTED`]. Recordings of real programs compress to a twentieth at best.
const MAX_RATIO: usize = 128;

/// Returns the maximum number of bytes to which `stored` compressed bytes may decompress; more is
/// an error.
pub(crate) const fn max_decompressed_len(stored: usize) -> usize {
    ALWAYS_ACCEPTED.saturating_add(stored.saturating_mul(MAX_RATIO))
}

/// Returns the id that the column with index `index` of `count` columns has in a chunk. Older
/// readers skip the last `optional` columns.
fn column_id(index: usize, count: usize, optional: usize) -> u8 {
    let required = count - optional;
    (if index < required { index } else { usize::from(OPTIONAL_FROM) + index - required }) as u8
}

/// Collects the columns of a chunk that is being written. A column holds the values of one field
/// for all events or blocks of the chunk.
///
/// There are `N` columns, numbered from 0. In the chunk, the last `OPTIONAL` of them have ids from
/// 64 on, which older readers skip; the number of any other column is its id.
#[derive(Clone, Debug)]
pub(crate) struct ColumnsWriter<const N: usize, const OPTIONAL: usize = 0> {
    columns: [Vec<u8>; N],
}

impl<const N: usize, const OPTIONAL: usize> Default for ColumnsWriter<N, OPTIONAL> {
    fn default() -> Self {
        Self { columns: std::array::from_fn(|_| Vec::new()) }
    }
}

impl<const N: usize, const OPTIONAL: usize> ColumnsWriter<N, OPTIONAL> {
    /// Returns the column with this number (below `N`), so that values can be appended.
    #[inline]
    pub(crate) fn column(&mut self, number: u8) -> &mut Vec<u8> {
        &mut self.columns[usize::from(number)]
    }

    /// Returns the number of uncompressed bytes in all columns.
    pub(crate) fn len(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Appends all columns to `out` and clears them.
    ///
    /// With a compressor, each column is compressed on its own if the columns together exceed
    /// [`COMPRESS_WHOLE_UP_TO`]. Smaller ones stay uncompressed, for the chunk to be compressed as
    /// a whole.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, compressor: Option<&mut Compressor>) {
        finish_columns(&mut self.columns, OPTIONAL, out, compressor);
    }
}

/// Appends the columns of a [`ColumnsWriter`] to `out` and clears them.
fn finish_columns(columns: &mut [Vec<u8>], optional: usize, out: &mut Vec<u8>, compressor: Option<&mut Compressor>) {
    let len: usize = columns.iter().map(Vec::len).sum();
    let start = out.len();
    let mut compressor = compressor.filter(|_| len > COMPRESS_WHOLE_UP_TO);
    put_columns(columns, optional, out, compressor.as_deref_mut());
    if let Some(compressor) = compressor {
        compressor.has_compressed_columns = true;
        if len > max_decompressed_len(out.len() - start) {
            // A reader would reject this compression ratio.
            out.truncate(start);
            put_columns(columns, optional, out, None);
        }
    }
    columns.iter_mut().for_each(Vec::clear);
}

/// Appends every column that is not empty to `out`: id, compression, lengths and bytes. Columns are
/// compressed if there is a compressor.
fn put_columns(columns: &[Vec<u8>], optional: usize, out: &mut Vec<u8>, mut compressor: Option<&mut Compressor>) {
    for (index, column) in columns.iter().enumerate().filter(|(_, column)| !column.is_empty()) {
        let (compression, bytes) = match &mut compressor {
            Some(compressor) => compressor.compress(column),
            None => (Compression::Uncompressed, column.as_slice()),
        };
        out.extend_from_slice(&[column_id(index, columns.len(), optional), compression.code()]);
        varint::put(out, column.len() as u64);
        if compression != Compression::Uncompressed {
            varint::put(out, bytes.len() as u64);
        }
        out.extend_from_slice(bytes);
    }
}

/// A column as a chunk's payload stores it, perhaps compressed.
#[derive(Clone, Copy, Debug)]
struct StoredColumn<'a> {
    compression: Compression,
    stored: &'a [u8],
    raw_len: usize,
    /// Offset in the payload at which the column begins.
    at: usize,
}

/// Finds the columns in the rest of a payload and stores each in `found` by its number; the last
/// `optional` of them have ids from 64 on. Returns the number of their decompressed bytes; more
/// than `max_len` are an error.
fn find_columns<'a>(
    reader: &mut Reader<'a>,
    max_len: usize,
    found: &mut [Option<StoredColumn<'a>>],
    optional: usize,
) -> Result<usize, PayloadError> {
    let max_len = max_len.min(max_decompressed_len(reader.remaining()));
    let count = found.len();
    let mut next = 0u16;
    let mut len = 0usize;
    while reader.remaining() > 0 {
        let at = reader.position();
        let id = reader.byte()?;
        if u16::from(id) < next {
            return Err(reader.payload_error("columns are not in order"));
        }
        next = u16::from(id) + 1;
        let compression =
            Compression::from_code(reader.byte()?).ok_or(reader.payload_error("unknown column compression"))?;
        let raw_len = reader.u64()?;
        let stored_len = if compression == Compression::Uncompressed { raw_len } else { reader.u64()? };
        let stored = reader.bytes(stored_len)?;
        let raw_len = usize::try_from(raw_len).unwrap_or(usize::MAX);
        let number = (0..count).find(|&index| column_id(index, count, optional) == id);
        if let Some(number) = number {
            len = len.saturating_add(raw_len);
            if reader.is_decompressed() && compression != Compression::Uncompressed {
                return Err(reader.payload_error("compressed column in a chunk that is compressed as a whole"));
            }
            if len > max_len {
                return Err(reader.payload_error("columns have more bytes than their chunk may have"));
            }
            found[number] = Some(StoredColumn { compression, stored, raw_len, at });
        } else if id < OPTIONAL_FROM {
            return Err(reader.payload_error("unknown column; a newer vramscope may read it"));
        }
    }
    Ok(len)
}

/// Appends the decompressed columns `found` to `bytes`, and stores in `ends`, for each, its end in
/// `bytes` and its offset in the payload.
fn decompress_columns(
    found: &[Option<StoredColumn<'_>>],
    decompressor: &mut Decompressor,
    bytes: &mut Vec<u8>,
    ends: &mut [(usize, usize)],
) -> Result<(), PayloadError> {
    for (end, found) in ends.iter_mut().zip(found) {
        if let &Some(StoredColumn { compression, stored, raw_len, at }) = found {
            let decompressed = decompressor.decompress(compression, stored, raw_len, bytes);
            let reason = "column does not decompress to its stated length";
            decompressed.map_err(|_| PayloadError { position: at, reason })?;
            end.1 = at;
        }
        end.0 = bytes.len();
    }
    Ok(())
}

/// The decompressed columns of a chunk that is being read: `N` columns, numbered as in
/// [`ColumnsWriter`].
#[derive(Clone, Debug)]
pub(crate) struct Columns<const N: usize, const OPTIONAL: usize = 0> {
    bytes: Vec<u8>,
    /// For each column, its end in `bytes` and its offset in the payload.
    ends: [(usize, usize); N],
}

impl<const N: usize, const OPTIONAL: usize> Columns<N, OPTIONAL> {
    /// Reads the rest of a payload as columns. More than `max_len` decompressed bytes in total are
    /// an error.
    pub(crate) fn read(
        reader: &mut Reader<'_>,
        decompressor: &mut Decompressor,
        max_len: usize,
    ) -> Result<Self, PayloadError> {
        let mut found = [None; N];
        let len = find_columns(reader, max_len, &mut found, OPTIONAL)?;
        let mut columns = Self { bytes: Vec::with_capacity(len), ends: [(0, 0); N] };
        decompress_columns(&found, decompressor, &mut columns.bytes, &mut columns.ends)?;
        Ok(columns)
    }

    /// Returns the number of decompressed bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns a reader of the column with this number; an empty reader if the chunk lacks the
    /// column.
    #[inline(never)] // Called once a column and chunk; smaller code: the page is downloaded.
    pub(crate) fn column(&self, number: u8) -> Reader<'_> {
        let index = usize::from(number);
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].0);
        Reader::within(&self.bytes[start..self.ends[index].0], self.ends[index].1)
    }
}
