//! Integers of as many bytes as they need: seven bits a byte, lowest first, the top bit set on all but the last (LEB128). Signed
//! ones are folded so that small magnitudes stay small (zigzag).

/// Appends an unsigned integer.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the difference between two values, either way around.
pub(crate) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    let delta = to.wrapping_sub(from) as i64;
    put(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

/// Appends a size in bytes. Nearly all are multiples of 512, and cost nine bits less for it.
pub(crate) fn put_size(out: &mut Vec<u8>, size: u64) {
    if size.is_multiple_of(512) {
        put(out, size / 512 * 2);
    } else {
        put_u65(out, size);
    }
}

/// A size that is no multiple of 512: one flag bit below its 64.
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

/// The greatest common divisor; of 0 and anything, that.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What is wrong at a position of a payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) at: usize,
    pub(crate) what: &'static str,
}

/// Takes values off the front of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where what is wrong is said to be, for bytes that were unpacked from there; else it is told to the byte.
    within: Option<usize>,
    /// Whether the bytes were packed as a whole.
    is_unpacked: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, within: None, is_unpacked: false }
    }

    /// A reader of a chunk's payload; `is_unpacked` says that it was packed as a whole.
    pub(crate) fn of_payload(payload: &'a [u8], is_unpacked: bool) -> Self {
        Self { is_unpacked, ..Self::new(payload) }
    }

    /// Whether the bytes were packed as a whole.
    pub(crate) fn is_unpacked(&self) -> bool {
        self.is_unpacked
    }

    /// A reader of bytes that were unpacked from those at `at` of a payload.
    pub(crate) fn within(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: 0, within: Some(at), is_unpacked: true }
    }

    #[cold]
    pub(crate) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.within.unwrap_or(self.at), what }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The next so many bytes.
    pub(crate) fn bytes(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or(self.malformed("the payload ends inside a value"))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline(always)]
    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        match self.bytes.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.malformed("the payload ends inside a value")),
        }
    }

    /// Nearly all values are of one byte or two.
    #[inline(always)]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        match self.bytes.get(self.at..) {
            Some(&[low, ..]) if low < 0x80 => {
                self.at += 1;
                Ok(u64::from(low))
            }
            Some(&[low, high, ..]) if high < 0x80 => {
                self.at += 2;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long_u64(),
        }
    }

    #[inline(never)]
    fn long_u64(&mut self) -> Result<u64, Malformed> {
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
        Err(self.malformed("an integer of more than 64 bits"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| self.malformed("a number of more than 32 bits"))
    }

    /// How many items follow, each of at least `item_bytes` bytes.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize, Malformed> {
        let count = self.u64()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.remaining() / item_bytes => Ok(count),
            _ => Err(self.malformed("a count of more items than the payload has room for")),
        }
    }

    pub(crate) fn delta(&mut self, from: u64) -> Result<u64, Malformed> {
        let folded = self.u64()?;
        let delta = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Ok(from.wrapping_add(delta as u64))
    }

    pub(crate) fn size(&mut self) -> Result<u64, Malformed> {
        let start = self.at;
        let first = self.byte()?;
        if first & 1 == 0 {
            self.at = start;
            let halves = self.u64()?;
            return (halves / 2).checked_mul(512).ok_or(self.malformed("a size of more than 64 bits"));
        }
        let low = u64::from(first >> 1 & 0x3f);
        if first < 0x80 {
            return Ok(low);
        }
        let rest = self.u64()?;
        if rest >> 58 != 0 { Err(self.malformed("a size of more than 64 bits")) } else { Ok(rest << 6 | low) }
    }

    /// A text of so many bytes.
    pub(crate) fn text_of(&mut self, length: u64) -> Result<&'a str, Malformed> {
        let start = self.at;
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map_err(|_| {
            let before = Reader { at: start, ..*self };
            before.malformed("a text that is not UTF-8")
        })
    }

    /// Ends the reading: nothing may be left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.malformed("bytes behind the last value")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
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
    fn what_is_too_long_is_refused() {
        assert!(Reader::new(&[0xff; 11]).u64().is_err());
        assert!(Reader::new(&[0x80; 3]).u64().is_err());
        assert!(Reader::new(&[0xff; 11]).size().is_err());
        assert!(Reader::new(b"a").text_of(5).is_err());
        assert!(Reader::new(&[0xff]).text_of(1).is_err());
    }
}
