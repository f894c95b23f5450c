//! Variable-length integers (LEB128) and the reader of payloads.
//!
//! Seven bits per byte, lowest first; the top bit is set on all bytes but the last. Signed values
//! are zigzag-encoded, so that small magnitudes stay short.

use crate::error::FormatError;

/// Appends an unsigned integer in LEB128 (7 bits a byte): 1 byte below 128, at most 10.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the signed difference `to - from`, zigzag-encoded, as an integer in LEB128.
pub(crate) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    let delta = to.wrapping_sub(from) as i64;
    put(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

/// Appends a size in bytes. Multiples of 512, as nearly all sizes are, take nine bits less.
pub(crate) fn put_size(out: &mut Vec<u8>, size: u64) {
    if size.is_multiple_of(512) {
        put(out, size / 512 * 2);
    } else {
        put_u65(out, size);
    }
}

/// Appends a size that is not a multiple of 512: shifted left by one bit, with 1 as its lowest bit,
/// so that the number has up to 65 bits.
fn put_u65(out: &mut Vec<u8>, size: u64) {
    let first = (size as u8 & 0x3f) << 1 | 1;
    let rest = size >> 6;
    if rest == 0 {
        out.push(first);
    } else {
        out.push(first | 0x80);
        put(out, rest);
    }
}

/// Returns the greatest common divisor of two numbers; `gcd(0, a)` is `a`.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The error for invalid bytes in the payload of a chunk, with their position in the payload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position} bytes into its payload: {reason}")]
pub(crate) struct PayloadError {
    /// Byte offset in the payload.
    pub(crate) position: usize,
    pub(crate) reason: &'static str,
}

impl PayloadError {
    /// Returns this error for users, about the chunk at byte `offset` of the recording.
    pub(crate) fn in_chunk_at(&self, offset: u64) -> FormatError {
        FormatError::new(offset, format!("invalid chunk, {self}"))
    }
}

/// Reads values one after the other from the payload or a column of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Position that errors report, for decompressed bytes; `None` to report the exact position.
    error_position: Option<usize>,
    /// Whether the bytes were decompressed as a whole.
    is_decompressed: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, error_position: None, is_decompressed: false }
    }

    /// Creates a reader of a chunk's payload. `is_decompressed` is true if the payload was
    /// compressed as a whole, so that its columns must not be compressed.
    pub(crate) fn of_payload(payload: &'a [u8], is_decompressed: bool) -> Self {
        Self { is_decompressed, ..Self::new(payload) }
    }

    /// Returns true if the payload was compressed as a whole; false if its columns may be
    /// compressed.
    pub(crate) fn is_decompressed(&self) -> bool {
        self.is_decompressed
    }

    /// Creates a reader of bytes that were decompressed from position `at` of a payload; errors
    /// report that position of the payload.
    pub(crate) fn within(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, position: 0, error_position: Some(at), is_decompressed: true }
    }

    /// Returns an error with the message `reason` at the reader's current position.
    #[cold]
    pub(crate) fn payload_error(&self, reason: &'static str) -> PayloadError {
        PayloadError { position: self.error_position.unwrap_or(self.position), reason }
    }

    /// Returns the offset of the next byte to read, counted from the start of this reader's bytes.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Returns the next `len` bytes and moves past them; an error if fewer are left.
    pub(crate) fn bytes(&mut self, len: u64) -> Result<&'a [u8], PayloadError> {
        let end = usize::try_from(len).ok().and_then(|len| self.position.checked_add(len));
        let bytes = end.and_then(|end| self.bytes.get(self.position..end));
        let bytes = bytes.ok_or(self.payload_error("the payload ends inside a value"))?;
        self.position += bytes.len();
        Ok(bytes)
    }

    /// Returns the number of bytes that are not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Reads one byte; an error if no byte is left.
    #[inline(always)]
    pub(crate) fn byte(&mut self) -> Result<u8, PayloadError> {
        match self.bytes.get(self.position) {
            Some(&byte) => {
                self.position += 1;
                Ok(byte)
            }
            None => Err(self.payload_error("the payload ends inside a value")),
        }
    }

    /// Reads an integer that [`put`] wrote. Integers of one or two bytes, as nearly all are, take a
    /// fast path.
    #[inline(always)]
    pub(crate) fn u64(&mut self) -> Result<u64, PayloadError> {
        match self.bytes.get(self.position..) {
            Some(&[low, ..]) if low < 0x80 => {
                self.position += 1;
                Ok(u64::from(low))
            }
            Some(&[low, high, ..]) if high < 0x80 => {
                self.position += 2;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long_u64(),
        }
    }

    /// Reads an integer of 1 to 10 bytes that [`put`] wrote; the slow path of [`u64`](Self::u64).
    #[inline(never)]
    fn long_u64(&mut self) -> Result<u64, PayloadError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.payload_error("integer above 64 bits"))
    }

    /// Skips the next `count` integers or sizes without decoding them; an error if fewer are left.
    pub(crate) fn skip(&mut self, count: u64) -> Result<(), PayloadError> {
        let mut left = count;
        while left > 0 {
            // Only the last byte of an integer or a size is below 0x80.
            left -= u64::from(self.byte()? < 0x80);
        }
        Ok(())
    }

    /// Reads an integer that [`put`] wrote; an error if it does not fit in 32 bits.
    pub(crate) fn u32(&mut self) -> Result<u32, PayloadError> {
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| self.payload_error("number above 32 bits"))
    }

    /// Reads a count of items of at least `item_bytes` bytes each; an error if fewer bytes are left
    /// than these items need.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize, PayloadError> {
        let count = self.u64()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.remaining() / item_bytes => Ok(count),
            _ => Err(self.payload_error("count of more items than the payload can hold")),
        }
    }

    /// Reads a difference that [`put_delta`] wrote and returns `from` plus the difference.
    pub(crate) fn delta(&mut self, from: u64) -> Result<u64, PayloadError> {
        let folded = self.u64()?;
        let delta = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Ok(from.wrapping_add(delta as u64))
    }

    /// Reads a size in bytes that [`put_size`] wrote.
    pub(crate) fn size(&mut self) -> Result<u64, PayloadError> {
        let start = self.position;
        let first = self.byte()?;
        if first & 1 == 0 {
            self.position = start;
            let halves = self.u64()?;
            return (halves / 2).checked_mul(512).ok_or(self.payload_error("size above 64 bits"));
        }
        let low = u64::from(first >> 1 & 0x3f);
        if first < 0x80 {
            return Ok(low);
        }
        let rest = self.u64()?;
        if rest >> 58 != 0 { Err(self.payload_error("size above 64 bits")) } else { Ok(rest << 6 | low) }
    }

    /// Reads `length` bytes as text; an error if they are not UTF-8.
    pub(crate) fn text(&mut self, length: u64) -> Result<&'a str, PayloadError> {
        let start = self.position;
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let before = Reader { position: start, ..*self };
            before.payload_error("text is not UTF-8")
        })
    }

    /// Returns an error unless all bytes of the payload or column were read.
    pub(crate) fn end(&self) -> Result<(), PayloadError> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.payload_error("bytes after the last value")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back() {
        let values = [0, 1, 63, 64, 127, 128, 511, 512, 513, 20 << 20, u64::MAX - 511, u64::MAX - 1, u64::MAX];
        for from in values {
            for to in values {
                let mut out = Vec::new();
                put(&mut out, to);
                put_delta(&mut out, from, to);
                put_size(&mut out, to);
                let mut reader = Reader::new(&out);
                assert_eq!((reader.u64(), reader.delta(from), reader.size()), (Ok(to), Ok(to), Ok(to)));
                assert_eq!(reader.end(), Ok(()));
            }
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert!(Reader::new(&[0xff; 11]).u64().is_err());
        assert!(Reader::new(&[0x80; 3]).u64().is_err());
        assert!(Reader::new(&[0xff; 11]).size().is_err());
        assert!(Reader::new(b"a").text(5).is_err());
        assert!(Reader::new(&[0xff]).text(1).is_err());
    }
}
