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

use std::io::Write;

use crc32c::crc32c;
use prost::Message;

use crate::export::error::ExportError;

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

/// Writes a TensorBoard event file record by record.
pub(super) struct EventFile<'a> {
    out: &'a mut dyn Write,
}

impl<'a> EventFile<'a> {
    /// Creates a writer and writes the version record, with which every file begins. `wall_time` is
    /// its time in seconds since 1970.
    pub(super) fn create(out: &'a mut dyn Write, wall_time: f64) -> Result<Self, ExportError> {
        let mut file = Self { out };
        file.write_event(&Event { wall_time, step: 0, file_version: Some("brain.Event:2".to_owned()), summary: None })?;
        Ok(file)
    }

    /// Writes one point of the scalar `tag`. `step` is its position on TensorBoard's axis,
    /// `wall_time` its time in seconds since 1970.
    pub(super) fn write_scalar(&mut self, wall_time: f64, step: u64, tag: &str, value: u64) -> Result<(), ExportError> {
        let value = Value { tag: tag.to_owned(), simple_value: Some(value as f32) };
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.write_event(&Event { wall_time, step, file_version: None, summary: Some(Summary { value: vec![value] }) })
    }

    /// Writes one record: its length, the length's checksum, the encoded event and the event's
    /// checksum.
    fn write_event(&mut self, event: &Event) -> Result<(), ExportError> {
        let event = event.encode_to_vec();
        let length = (event.len() as u64).to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&masked(crc32c(&length)).to_le_bytes())?;
        self.out.write_all(&event)?;
        Ok(self.out.write_all(&masked(crc32c(&event)).to_le_bytes())?)
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
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
