//! One event of a profiler trace, in the trace event format of Chromium.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use serde_json::value::RawValue;

/// The name of events that report an allocation or a free.
pub(super) const MEMORY_EVENT: &str = "[memory]";

/// The name of events that report a failed request.
pub(super) const FAILURE_EVENT: &str = "[OutOfMemory]";

/// The fields of an event that memory and its sites follow from.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TraceEvent<'a> {
    /// The kind: `X` with a duration, `i` a moment, `s` and `f` the ends of an arrow.
    #[serde(borrow)]
    pub(super) ph: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) cat: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) name: Cow<'a, str>,
    pub(super) pid: TrackId,
    pub(super) tid: TrackId,
    /// The time in microseconds, with up to three decimals.
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    dur: Option<&'a RawValue>,
    /// The number of an arrow.
    pub(super) id: TrackId,
    pub(super) args: EventArguments,
}

/// The arguments of an event that memory follows from.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EventArguments {
    /// Bytes of the block: negative for a free.
    #[serde(rename = "Bytes")]
    pub(super) bytes: Option<i64>,
    #[serde(rename = "Addr")]
    pub(super) address: Option<u64>,
    #[serde(rename = "Total Allocated")]
    pub(super) allocated: Option<u64>,
    #[serde(rename = "Total Reserved")]
    pub(super) reserved: Option<u64>,
    /// PyTorch's `c10::DeviceType`: 0 is the CPU, 1 CUDA or ROCm.
    #[serde(rename = "Device Type")]
    pub(super) device_type: Option<i32>,
    #[serde(rename = "Device Id")]
    pub(super) device: Option<i32>,
}

/// The number or name of a process, a thread or an arrow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum TrackId {
    #[default]
    None,
    Number(i64),
    Name(Box<str>),
}

impl<'de> Deserialize<'de> for TrackId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TrackIdVisitor)
    }
}

struct TrackIdVisitor;

impl Visitor<'_> for TrackIdVisitor {
    type Value = TrackId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a name")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<TrackId, E> {
        Ok(TrackId::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<TrackId, E> {
        Ok(TrackId::Number(number.cast_signed()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<TrackId, E> {
        Ok(TrackId::Number(number as i64))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<TrackId, E> {
        Ok(TrackId::Name(name.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<TrackId, E> {
        Ok(TrackId::None)
    }
}

impl TraceEvent<'_> {
    /// Returns the event's time in nanoseconds; `None` if it has none.
    pub(super) fn time_ns(&self) -> Option<i64> {
        nanoseconds(self.ts?.get())
    }

    /// Returns the event's duration in nanoseconds; 0 without one.
    pub(super) fn duration_ns(&self) -> i64 {
        self.dur.and_then(|text| nanoseconds(text.get())).unwrap_or(0).max(0)
    }
}

/// Converts microseconds as a decimal number to nanoseconds; `None` if it is no number.
///
/// A `f64` has too few digits: times since 1970 in microseconds take 51 of its 53 bits.
fn nanoseconds(text: &str) -> Option<i64> {
    let text = text.trim_matches('"');
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain(whole.strip_prefix('-').unwrap_or(whole)) || !is_plain(decimals) || whole.is_empty() {
        let microseconds: f64 = text.parse().ok()?;
        return Some((microseconds * 1000.0) as i64);
    }
    let micros: i64 = whole.parse().ok()?;
    let nanos = decimals.bytes().chain(*b"000").take(3).fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let nanos = if whole.starts_with('-') { -nanos } else { nanos };
    micros.checked_mul(1000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (text, expected) in [
            ("1716000000123456.789", Some(1_716_000_000_123_456_789)),
            ("12", Some(12_000)),
            ("12.5", Some(12_500)),
            ("12.12345", Some(12_123)),
            ("-1.5", Some(-1500)),
            ("\"7.25\"", Some(7250)),
            ("1e3", Some(1_000_000)),
            ("true", None),
            ("9223372036854775807", None),
        ] {
            assert_eq!(nanoseconds(text), expected, "{text}");
        }
    }

    #[test]
    fn fields_of_a_memory_event_are_read() {
        let text = r#"{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 687, "tid": "x",
            "ts": 5011485676163.071, "args": {"Total Reserved": 8, "Total Allocated": 4, "Bytes": -2,
            "Device Id": 0, "Device Type": 1, "Addr": 18446744073709551615, "finished": false}}"#;
        let event: TraceEvent<'_> = serde_json::from_str(text).expect("the event is valid");
        assert_eq!((&*event.name, event.time_ns()), (MEMORY_EVENT, Some(5_011_485_676_163_071)));
        assert_eq!((event.pid, event.tid), (TrackId::Number(687), TrackId::Name("x".into())));
        assert_eq!((event.args.bytes, event.args.address), (Some(-2), Some(u64::MAX)));
    }
}
