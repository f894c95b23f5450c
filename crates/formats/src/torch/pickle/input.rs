//! The bytes of a pickle, from front to back.

use super::value::Value;
use crate::limits::OutOfBudget;
use crate::torch::scalar::Refusal;

/// What went wrong in one instruction; the machine knows where. Two words, so that results without one come back in registers.
#[derive(Debug)]
pub(super) struct Failure(pub(super) Box<str>);

pub(super) type Done<T> = Result<T, Failure>;

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        refusal.to_string().into()
    }
}

impl From<OutOfBudget> for Failure {
    fn from(error: OutOfBudget) -> Self {
        error.to_string().into()
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        Self(what.into())
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self(what.into())
    }
}

#[cold]
fn cut_off() -> Failure {
    "the pickle is cut off inside an instruction that begins".into()
}

/// The bytes, and how far they are read.
#[derive(Debug)]
pub(super) struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Goes back to where it stood once.
    pub(super) fn go_back(&mut self, at: usize) {
        debug_assert!(at <= self.at);
        self.at = at;
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Done<&'a [u8]> {
        let taken = self.rest().get(..len).ok_or_else(cut_off)?;
        self.at += len;
        Ok(taken)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        let array = *self.rest().first_chunk::<N>().ok_or_else(cut_off)?;
        self.at += N;
        Ok(array)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Done<u8> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Done<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A length of 8 bytes.
    pub(super) fn len64(&mut self) -> Done<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| cut_off())
    }

    /// A little-endian integer of any length in two's complement; one of more than 64 bits is not kept.
    #[inline]
    pub(super) fn long(&mut self, len: usize) -> Done<Value> {
        if let 1..8 = len
            && let Some(&filled) = self.rest().first_chunk::<8>()
        {
            // Nearly every one, without a copy of a length that only the input knows: the bytes behind it are shifted out.
            self.at += len;
            let unused = 64 - 8 * len;
            return Ok(Value::Int(i64::from_le_bytes(filled) << unused >> unused));
        }
        let bytes = self.take(len)?;
        let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let fill = if is_negative { 0xff } else { 0 };
        // What stands above the eighth byte may only repeat the sign.
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
    fn integers_have_any_length() {
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
