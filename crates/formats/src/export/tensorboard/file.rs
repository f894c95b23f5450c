//! Writes a TensorBoard event file: messages, each with its length and checksums.
//!
//! ```text
//! +--------------+-----------------+----------------+------------------+
//! | length: u64  | crc(length): u32| Event: length  | crc(Event): u32  |   all little-endian
//! +--------------+-----------------+----------------+------------------+
//! ```
//!
//! This is the framing of TensorFlow's `TFRecord`. Its checksums are CRC-32C, rotated and with a
//! constant added, so that the checksum of data that contains checksums is not trivial. The
//! messages are defined in `tensorboard/compat/proto`.

use std::io::{self, Write};

use crc32c::crc32c;
use prost::Message;

/// TensorBoard's message `Event`: one record of an event file.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// TensorBoard's message `Summary`: the values of one event.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// TensorBoard's message `Summary.Value`: the name (tag) of a scalar and its value.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// A TensorBoard event file with scalars, written record by record.
///
/// Each record is passed to the output in one call, so that a reader of a file that is still
/// written sees complete records.
///
/// ```
/// use vramscope_formats::export::ScalarFile;
///
/// # fn main() -> std::io::Result<()> {
/// let mut file = ScalarFile::create(Vec::new(), 1.7e9)?;
/// file.write(1.7e9, 1, &[("loss", 2.5), ("memory/allocated", 4096.0)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ScalarFile<W> {
    out: W,
}

impl<W: Write> ScalarFile<W> {
    /// Creates a writer and writes the version record, with which every file begins. `wall_time` is
    /// the record's time in seconds since 1970.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn create(out: W, wall_time: f64) -> io::Result<Self> {
        let mut file = Self { out };
        file.write_event(&Event { wall_time, step: 0, file_version: Some("brain.Event:2".to_owned()), summary: None })?;
        Ok(file)
    }

    /// Writes a point of each of the `scalars`, given by tag and value, as one record. `step` is
    /// their position on TensorBoard's axis, `wall_time` their time in seconds since 1970. Values
    /// are rounded to 24 bits of precision.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write(&mut self, wall_time: f64, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let value = |&(tag, value): &(&str, f64)| Value { tag: tag.to_owned(), simple_value: Some(value as f32) };
        let summary = Summary { value: scalars.iter().map(value).collect() };
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.write_event(&Event { wall_time, step, file_version: None, summary: Some(summary) })
    }

    /// Writes one record: its length, the length's checksum, the encoded event and the event's
    /// checksum.
    fn write_event(&mut self, event: &Event) -> io::Result<()> {
        let event = event.encode_to_vec();
        let length = (event.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(event.len() + 16);
        record.extend_from_slice(&length);
        record.extend_from_slice(&masked(crc32c(&length)).to_le_bytes());
        record.extend_from_slice(&event);
        record.extend_from_slice(&masked(crc32c(&event)).to_le_bytes());
        self.out.write_all(&record)
    }
}

/// Returns a CRC as TensorBoard's event file stores it: rotated right by 15 bits, plus a constant.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
