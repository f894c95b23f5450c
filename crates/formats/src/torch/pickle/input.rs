//! Reads the bytes of a pickle.

use std::fmt::Display;

use super::value::Value;
use crate::error::ReadError;

/// The message of a pickle instruction that failed; the pickle machine adds the position. Boxed, so
/// that a result without a value is returned in registers.
#[derive(Debug)]
pub(super) struct StepError(pub(super) Box<str>);

impl StepError {
    /// Returns the error for the pickle instruction at byte offset `start`. If the pickle is cut
    /// off, the error is at its end, `len`.
    pub(super) fn at(self, start: usize, len: usize) -> ReadError {
        if self.is_truncated() { ReadError::truncated(len) } else { ReadError::at(start, self.0) }
    }

    /// Returns true if the instruction needs more bytes than have arrived.
    pub(super) fn is_truncated(&self) -> bool {
        &*self.0 == TRUNCATED
    }
}

/// The result of a pickle instruction, or of a part of an instruction.
pub(super) type StepResult<T> = Result<T, StepError>;

impl<E: Display> From<E> for StepError {
    fn from(error: E) -> Self {
        Self(error.to_string().into())
    }
}

/// The message for a pickle that ends inside an instruction, by which the pickle machine recognizes
/// this error.
const TRUNCATED: &str = "the pickle is cut off";

/// Returns the error for a pickle whose bytes end inside an instruction.
#[cold]
fn cut_off() -> StepError {
    StepError(TRUNCATED.into())
}

/// The bytes of a pickle that have arrived and are not dropped yet, and the position of the next
/// byte to read.
#[derive(Debug, Default)]
pub(super) struct Input {
    buffer: Vec<u8>,
    /// Index in `buffer` of the next byte to read.
    at: usize,
    /// Number of bytes that were read and dropped before the bytes in `buffer`.
    dropped: usize,
}

impl Input {
    /// Returns the number of bytes of the pickle that were read so far.
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.dropped + self.at
    }

    /// Returns the number of bytes of the pickle that have arrived so far, read or not.
    pub(super) fn len(&self) -> usize {
        self.dropped + self.buffer.len()
    }

    /// Drops the bytes that were read, and returns the buffer, to which the next bytes of the
    /// pickle may be appended.
    pub(super) fn buffer_mut(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.at);
        self.dropped += self.at;
        self.at = 0;
        &mut self.buffer
    }

    /// Moves the reading position back to the byte offset `offset`, which must not be dropped yet.
    pub(super) fn rewind_to(&mut self, offset: usize) {
        debug_assert!((self.dropped..=self.offset()).contains(&offset));
        self.at = offset.saturating_sub(self.dropped).min(self.at);
    }

    /// Returns the bytes that have arrived and are not read yet.
    #[inline]
    pub(super) fn rest(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Skips `len` bytes that [`rest`](Self::rest) has returned.
    #[inline]
    pub(super) fn skip(&mut self, len: usize) {
        debug_assert!(len <= self.rest().len());
        self.at = (self.at + len).min(self.buffer.len());
    }

    /// Reads the next `len` bytes; fails if fewer are left.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> StepResult<&[u8]> {
        let taken = self.buffer[self.at..].get(..len).ok_or_else(cut_off)?;
        self.at += len;
        Ok(taken)
    }

    /// Reads the next `N` bytes; fails if fewer are left.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> StepResult<[u8; N]> {
        let array = *self.rest().first_chunk::<N>().ok_or_else(cut_off)?;
        self.at += N;
        Ok(array)
    }

    /// Reads the next byte; fails at the end.
    #[inline]
    pub(super) fn u8(&mut self) -> StepResult<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a little-endian integer of 4 bytes.
    #[inline]
    pub(super) fn u32(&mut self) -> StepResult<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a length: a little-endian integer of 8 bytes.
    pub(super) fn len64(&mut self) -> StepResult<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| cut_off())
    }

    /// Reads a little-endian two's complement integer of `len` bytes; [`Value::Opaque`] if it does
    /// not fit in 64 bits.
    pub(super) fn long(&mut self, len: usize) -> StepResult<Value> {
        self.take(len).map(long)
    }
}

/// Returns the value of a little-endian two's complement integer of any length;
/// [`Value::Opaque`] if it does not fit in 64 bits.
pub(super) fn long(bytes: &[u8]) -> Value {
    let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    let fill = if is_negative { 0xff } else { 0 };
    // Bytes beyond the eighth may only repeat the sign.
    let (low, high) = bytes.split_at(bytes.len().min(8));
    let mut filled = [fill; 8];
    filled[..low.len()].copy_from_slice(low);
    let number = i64::from_le_bytes(filled);
    if high.iter().any(|&byte| byte != fill) {
        Value::Opaque
    } else if is_negative == (number < 0) {
        Value::Int(number)
    } else if is_negative {
        Value::Opaque
    } else {
        Value::Unsigned(number.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_length_are_read() {
        let check = |bytes: &[u8], value: Value| assert_eq!(long(bytes), value, "{bytes:?}");
        check(b"", Value::Int(0));
        check(b"\xff", Value::Int(-1));
        check(b"\xff\x00", Value::Int(255));
        check(&i64::MIN.to_le_bytes(), Value::Int(i64::MIN));
        check(b"\xff\xff\xff\xff\xff\xff\xff\xff\x00", Value::Unsigned(u64::MAX));
        check(b"\x01\0\0\0\0\0\0\0\0\0\0", Value::Int(1));
        check(b"\0\0\0\0\0\0\0\0\x01", Value::Opaque);
        check(b"\0\0\0\0\0\0\0\0\xff", Value::Opaque);
    }

    #[test]
    fn bytes_that_were_read_are_dropped() {
        let mut input = Input::default();
        input.buffer_mut().extend(b"abcdef");
        assert_eq!(input.take(4).ok(), Some(&b"abcd"[..]));
        input.rewind_to(3);
        input.buffer_mut().extend(b"gh");
        assert_eq!((input.offset(), input.len(), input.rest()), (3, 8, &b"defgh"[..]));
        assert!(input.take(6).is_err());
        input.skip(5);
        assert_eq!((input.offset(), input.rest()), (8, &b""[..]));
    }
}
