//! Columns of 64-bit numbers, in which the index stores counters and metrics over time.
//!
//! ```text
//! column   | unit | for each value its quotient by the unit (signed) |
//! ```
//!
//! Values are signed 64-bit numbers, mostly differences between consecutive numbers. The unit is
//! their greatest common divisor.

use crate::varint::{PayloadError, Reader, gcd, put, put_delta};

/// Appends a column of signed values (as two's complement) as multiples of their greatest common
/// divisor: sizes are multiples of 512, and some clocks count microseconds.
pub(crate) fn put_column(out: &mut Vec<u8>, values: &[u64]) {
    let unit = values.iter().fold(0, |unit, &value| gcd(unit, (value as i64).unsigned_abs()));
    // 2⁶³ does not fit in an i64.
    let unit = if unit > i64::MAX as u64 { 1 } else { unit.max(1) };
    put(out, unit);
    for &value in values {
        put_delta(out, 0, (value as i64 / unit as i64) as u64);
    }
}

/// Appends a column of numbers, each as its wrapping difference to the number before it; the first
/// as its difference to 0.
pub(crate) fn put_differences(out: &mut Vec<u8>, numbers: impl Iterator<Item = u64>) {
    let mut before = 0;
    let differences: Vec<u64> =
        numbers.map(|number| number.wrapping_sub(std::mem::replace(&mut before, number))).collect();
    put_column(out, &differences);
}

/// Reads `count` values that [`put_column`] wrote. The caller must have checked `count` against the
/// remaining bytes, because memory for all values is allocated at once.
pub(crate) fn read_column(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, PayloadError> {
    let unit = reader.u64()?;
    (0..count).map(|_| Ok(reader.delta(0)?.wrapping_mul(unit))).collect()
}

/// Reads `count` numbers that [`put_differences`] wrote; sums wrap around at 64 bits. For `count`
/// see [`read_column`].
pub(crate) fn read_differences(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u64>, PayloadError> {
    let mut numbers = read_column(reader, count)?;
    let mut before = 0u64;
    for number in &mut numbers {
        before = before.wrapping_add(*number);
        *number = before;
    }
    Ok(numbers)
}

/// Reads `count` numbers that [`put_differences`] wrote and that must not decrease; `reason` is the
/// error's message if one does. For `count` see [`read_column`].
pub(crate) fn read_increasing(
    reader: &mut Reader<'_>,
    count: usize,
    reason: &'static str,
) -> Result<Vec<u64>, PayloadError> {
    let mut numbers = read_column(reader, count)?;
    let mut before = 0u64;
    for number in &mut numbers {
        before = before.checked_add(*number).ok_or_else(|| reader.payload_error(reason))?;
        *number = before;
    }
    Ok(numbers)
}

/// Damages encoded bytes for a test: cuts them at `end` modulo twice their length, then sets the
/// byte at each index of `hits` (modulo the length that is left) to its value.
#[cfg(test)]
pub(crate) fn damage(bytes: &mut Vec<u8>, hits: &[(usize, u8)], end: usize) {
    bytes.truncate(end % (bytes.len() * 2));
    for &(at, byte) in hits {
        if !bytes.is_empty() {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
    }
}
