//! Checks the sizes in a Parquet file before the parquet crate allocates them.
//!
//! The parquet crate reserves memory for the lengths of lists and texts and for the sizes of pages
//! that a file states. A damaged file could state any, and a failed allocation ends the process.
//! Footers and page headers are in Thrift's compact protocol:
//! <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.

/// Maximum size of a footer, in bytes. The footer of an archive's part has about 30 KB.
pub(crate) const MAX_FOOTER_BYTES: u64 = 4 << 20;
/// Maximum uncompressed size of a page, in bytes. The archive's writer makes pages of at most 1
/// MiB.
const MAX_PAGE_BYTES: u64 = 16 << 20;
/// Maximum number of values of a page.
const MAX_PAGE_VALUES: u64 = 1 << 24;
/// Maximum number of elements of a list in a footer, such as row groups or columns.
const MAX_LIST: u64 = 1024;
/// Maximum nesting depth of structures; Parquet's have about eight levels.
const MAX_DEPTH: usize = 16;

/// The value of an integer field; `None` for fields of other types.
type Integer = Option<i64>;

/// Thrift's types in the compact protocol.
mod kind {
    /// Type code: a truth value that is true.
    pub(super) const TRUE: u8 = 1;
    /// Type code: a truth value that is false.
    pub(super) const FALSE: u8 = 2;
    /// Type code: an integer of 8 bits.
    pub(super) const BYTE: u8 = 3;
    /// Type code: an integer of 16 bits, the first type of variable length.
    pub(super) const I16: u8 = 4;
    /// Type code: an integer of 64 bits, the last type of variable length.
    pub(super) const I64: u8 = 6;
    /// Type code: a floating-point number of 8 bytes.
    pub(super) const DOUBLE: u8 = 7;
    /// Type code: bytes or a text, after their length.
    pub(super) const BINARY: u8 = 8;
    /// Type code: a list of elements of one type.
    pub(super) const LIST: u8 = 9;
    /// Type code: a set, encoded as a list.
    pub(super) const SET: u8 = 10;
    /// Type code: a structure of numbered fields.
    pub(super) const STRUCT: u8 = 12;
}

/// The bytes in Thrift's compact protocol that have not been read.
struct Compact<'a>(&'a [u8]);

/// A result whose error says why bytes are refused.
type Result<T> = std::result::Result<T, String>;

/// Returns the reason for which damaged bytes are refused.
fn damaged() -> String {
    "it is damaged".to_owned()
}

impl Compact<'_> {
    /// Reads a byte.
    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Skips a number of bytes.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| damaged())?;
        self.0 = self.0.get(bytes..).ok_or_else(damaged)?;
        Ok(())
    }

    /// Reads an unsigned integer of variable length.
    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    /// Reads a signed integer of variable length.
    fn integer(&mut self) -> Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Skips a value. Calls `field` with the path of fields and the value of each integer in it.
    fn value(&mut self, kind: u8, path: &mut Vec<i64>, field: &mut dyn FnMut(&[i64], Integer)) -> Result<()> {
        if path.len() > MAX_DEPTH {
            return Err(damaged());
        }
        match kind {
            kind::TRUE | kind::FALSE => field(path, None),
            kind::BYTE => self.skip(1)?,
            kind::I16..=kind::I64 => {
                let number = self.integer()?;
                field(path, Some(number));
            }
            kind::DOUBLE => self.skip(8)?,
            kind::BINARY => {
                let bytes = self.varint()?;
                self.skip(bytes)?;
            }
            kind::LIST | kind::SET => self.list(path, field)?,
            kind::STRUCT => self.structure(path, field)?,
            // Parquet has no maps.
            _ => return Err(damaged()),
        }
        Ok(())
    }

    /// Skips a list like [`value`](Self::value); its elements have the field number 0.
    fn list(&mut self, path: &mut Vec<i64>, field: &mut dyn FnMut(&[i64], Integer)) -> Result<()> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        if len > MAX_LIST {
            return Err(format!("a list in it has {len} entries; {MAX_LIST} are allowed"));
        }
        path.push(0);
        for _ in 0..len {
            match head & 15 {
                // Unlike fields, elements of lists have a byte for a truth value.
                kind::TRUE | kind::FALSE => self.skip(1)?,
                kind => self.value(kind, path, field)?,
            }
        }
        path.pop();
        Ok(())
    }

    /// Skips a structure like [`value`](Self::value).
    fn structure(&mut self, path: &mut Vec<i64>, field: &mut dyn FnMut(&[i64], Integer)) -> Result<()> {
        let mut id = 0_i64;
        loop {
            let head = self.byte()?;
            if head & 15 == 0 {
                return Ok(());
            }
            id = if head >> 4 == 0 { self.integer()? } else { id.saturating_add(i64::from(head >> 4)) };
            path.push(id);
            self.value(head & 15, path, field)?;
            path.pop();
        }
    }
}

/// Checks the lengths in a footer, without the eight bytes at its end.
///
/// # Errors
/// If it is damaged, or has longer lists than the footers of archives.
pub(crate) fn check_footer(footer: &[u8]) -> Result<()> {
    Compact(footer).structure(&mut Vec::new(), &mut |_, _| ())
}

/// Checks all pages of a piece of a column.
///
/// # Errors
/// If a header is damaged, a page is larger than an archive's pages, or has an encoding that
/// archives do not have.
pub(crate) fn check_pages(bytes: &[u8]) -> Result<()> {
    let mut pages = Compact(bytes);
    while !pages.0.is_empty() {
        let mut sizes = [None; 2];
        let mut is_allowed = true;
        // Fields of PageHeader, DataPageHeader, DictionaryPageHeader and DataPageHeaderV2 in
        // parquet.thrift.
        pages.structure(&mut Vec::new(), &mut |path, integer| match path {
            [2] => sizes[0] = integer,
            [3] => sizes[1] = integer,
            [5 | 7 | 8, 1] => is_allowed &= is_within(integer, MAX_PAGE_VALUES),
            [5 | 7, 2] | [8, 4] => is_allowed &= is_written_encoding(integer),
            _ => (),
        })?;
        let [uncompressed, compressed] = sizes;
        if !is_allowed || !is_within(uncompressed, MAX_PAGE_BYTES) || !is_within(compressed, MAX_PAGE_BYTES) {
            return Err("a page in it is larger than, or encoded otherwise than those of archives".to_owned());
        }
        pages.skip(compressed.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default())?;
    }
    Ok(())
}

/// Returns true for an integer from 0 to `limit`.
fn is_within(integer: Integer, limit: u64) -> bool {
    integer.is_some_and(|integer| u64::try_from(integer).is_ok_and(|integer| integer <= limit))
}

/// Returns true for the encodings that the archive's writer uses: PLAIN, PLAIN_DICTIONARY, RLE and
/// RLE_DICTIONARY.
fn is_written_encoding(integer: Integer) -> bool {
    matches!(integer, Some(0 | 2 | 3 | 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page header: type 0, 4 bytes uncompressed and compressed, with 1 value.
    const PAGE: [u8; 17] = [0x15, 0, 0x15, 8, 0x15, 8, 0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0];

    /// Checks a page that `change` has changed.
    fn pages(change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut bytes = [&PAGE[..], &[1, 2, 3, 4]].concat();
        change(&mut bytes);
        check_pages(&bytes)
    }

    #[test]
    fn whole_pages_are_accepted() {
        assert_eq!(pages(|_| ()), Ok(()));
        assert_eq!(pages(|bytes| bytes.extend(bytes.clone())), Ok(()));
        assert_eq!(check_pages(&[]), Ok(()));
    }

    #[test]
    fn damaged_pages_are_refused() {
        assert!(pages(|bytes| bytes.truncate(20)).is_err());
        assert!(pages(|bytes| bytes.truncate(10)).is_err());
        assert!(pages(|bytes| bytes.push(0)).is_err());
        assert!(pages(|bytes| bytes[3] = 9).is_err(), "a negative size");
        assert!(pages(|bytes| bytes[5] = 10).is_err(), "longer than the bytes");
        assert!(pages(|bytes| bytes[10] = 10).is_err(), "the encoding DELTA_BINARY_PACKED");
        let large = [0x15, 0, 0x15, 0x80, 0x80, 0x80, 0x80, 1, 0x15, 0, 0];
        assert!(check_pages(&large).is_err_and(|error| error.contains("larger")));
    }

    #[test]
    fn long_lists_and_deep_structures_are_refused() {
        // A field 1 that is a list of 2^31 - 1 structures.
        let list = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7];
        assert!(check_footer(&list).is_err_and(|error| error.contains("2147483647 entries")));
        assert!(check_footer(&[0x1c; 1000]).is_err());
        assert!(check_footer(&[0x19; 1000]).is_err());
        // A text that is longer than the bytes, and a length that does not end.
        assert!(check_footer(&[0x18, 100, 0]).is_err());
        assert!(check_footer(&[&[0x18][..], &[0xff; 20]].concat()).is_err());
        assert_eq!(check_footer(&[0x18, 1, b'x', 0]), Ok(()));
    }
}
