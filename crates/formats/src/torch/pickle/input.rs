//! Reads the bytes of a pickle.

use super::value::Value;
use crate::error::ReadError;
use crate::limits::LimitExceeded;
use crate::torch::scalar::FieldError;

/// The message of a pickle instruction that failed; the pickle machine adds the position. Boxed, so
/// that a result without a value is returned in registers.
#[derive(Debug)]
pub(super) struct StepError(pub(super) Box<str>);

impl StepError {
    /// Returns the error for the pickle instruction at byte offset `start`. If the pickle is cut
    /// off, the error is at its end, `len`.
    pub(super) fn at(self, start: usize, len: usize) -> ReadError {
        if &*self.0 == TRUNCATED { ReadError::truncated(len) } else { ReadError::at(start, self.0) }
    }
}

/// The result of a pickle instruction, or of a part of an instruction.
pub(super) type StepResult<T> = Result<T, StepError>;

impl From<FieldError> for StepError {
    fn from(error: FieldError) -> Self {
        error.to_string().into()
    }
}

impl From<LimitExceeded> for StepError {
    fn from(error: LimitExceeded) -> Self {
        error.to_string().into()
    }
}

impl From<&str> for StepError {
    fn from(message: &str) -> Self {
        Self(message.into())
    }
}

impl From<String> for StepError {
    fn from(message: String) -> Self {
        Self(message.into())
    }
}

/// The message for a pickle that ends inside an instruction, by which the pickle machine recognizes
/// this error.
pub(super) const TRUNCATED: &str = "the pickle is cut off";

/// Returns the error for a pickle that ends inside an instruction.
#[cold]
fn cut_off() -> StepError {
    StepError(TRUNCATED.into())
}

/// The bytes of a pickle, and the position of the next byte to read.
#[derive(Debug)]
pub(super) struct Input<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Input<'a> {
    /// Starts at the first byte.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length of the whole pickle.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Moves the reading position back to the byte offset `offset`.
    pub(super) fn rewind_to(&mut self, offset: usize) {
        debug_assert!(offset <= self.offset);
        self.offset = offset;
    }

    /// Returns the bytes that are not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.offset..]
    }

    /// Reads the next `len` bytes; fails if fewer are left.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> StepResult<&'a [u8]> {
        let taken = self.rest().get(..len).ok_or_else(cut_off)?;
        self.offset += len;
        Ok(taken)
    }

    /// Reads the next `N` bytes; fails if fewer are left.
    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> StepResult<[u8; N]> {
        let array = *self.rest().first_chunk::<N>().ok_or_else(cut_off)?;
        self.offset += N;
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
    #[inline]
    pub(super) fn long(&mut self, len: usize) -> StepResult<Value> {
        if let 1..8 = len
            && let Some(&filled) = self.rest().first_chunk::<8>()
        {
            // The common case: reads 8 bytes and shifts out those behind the integer, which avoids
            // a copy of variable length.
            self.offset += len;
            let unused = 64 - 8 * len;
            return Ok(Value::Int(i64::from_le_bytes(filled) << unused >> unused));
        }
        let bytes = self.take(len)?;
        let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let fill = if is_negative { 0xff } else { 0 };
        // Bytes beyond the eighth may only repeat the sign.
        let (low, high) = bytes.split_at(bytes.len().min(8));
        let mut filled = [fill; 8];
        filled[..low.len()].copy_from_slice(low);
        let number = i64::from_le_bytes(filled);
        Ok(if high.iter().any(|&byte| byte != fill) {
            Value::Opaque
        } else if is_negative == (number < 0) {
            Value::Int(number)
        } else if is_negative {
            Value::Opaque
        } else {
            Value::Unsigned(number.cast_unsigned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], value: Value) {
        assert_eq!(Input::new(bytes).long(bytes.len()).ok(), Some(value), "{bytes:?}");
    }

    #[test]
    fn integers_of_any_length_are_read() {
        for padded in [b"\xff\x7f.......", b"\xff\xff.......", b"\x00\x80......."] {
            let number = i64::from(i16::from_le_bytes([padded[0], padded[1]]));
            assert_eq!(Input::new(padded).long(2).ok(), Some(Value::Int(number)));
        }
        check(b"", Value::Int(0));
        check(b"\xff", Value::Int(-1));
        check(b"\xff\x00", Value::Int(255));
        check(&i64::MIN.to_le_bytes(), Value::Int(i64::MIN));
        check(b"\xff\xff\xff\xff\xff\xff\xff\xff\x00", Value::Unsigned(u64::MAX));
        check(b"\x01\0\0\0\0\0\0\0\0\0\0", Value::Int(1));
        check(b"\0\0\0\0\0\0\0\0\x01", Value::Opaque);
        check(b"\0\0\0\0\0\0\0\0\xff", Value::Opaque);
    }
}
