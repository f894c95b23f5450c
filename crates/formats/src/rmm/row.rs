//! One line of the log.

use crate::error::ReadError;

/// What the columns are called. They stand in this order.
pub(crate) const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// What a line that someone has added begins with.
pub(crate) const COMMENT: u8 = b'#';

/// What a line says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allocate,
    Free,
    /// The upstream resource had no memory for a request.
    Fail,
}

/// When a line was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Nanoseconds since midnight, local time. No line says the day.
    OfDay(u64),
    /// Nanoseconds since 1970.
    Unix(u64),
}

/// A line that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) thread: u64,
    pub(super) time: Time,
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
}

/// A line, and where it stands.
pub(super) struct Line {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) read: Result<Row, &'static str>,
}

/// The lines of a log, one after the other, without its headers.
pub(super) struct Lines<'a> {
    reader: csv::Reader<&'a [u8]>,
    record: csv::ByteRecord,
}

impl<'a> Lines<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        // A line is a line: no field is ever quoted, and a stray quote must not swallow the rest of the file.
        let mut builder = csv::ReaderBuilder::new();
        builder.has_headers(false).flexible(true).quoting(false).comment(Some(COMMENT));
        let reader = builder.from_reader(bytes);
        Self { reader, record: csv::ByteRecord::new() }
    }

    /// The next line that is not a header; `None` at the end. A log that was continued has a second header.
    pub(super) fn next(&mut self) -> Result<Option<Line>, ReadError> {
        loop {
            let at = self.reader.position().clone();
            let more = self.reader.read_byte_record(&mut self.record).map_err(|error| ReadError {
                offset: at.byte(),
                place: Some((at.line() as usize, 1)),
                what: format!("this line cannot be read: {error}"),
            })?;
            if !more {
                return Ok(None);
            }
            let at = self.record.position().cloned().unwrap_or(at);
            if !is_header(&self.record) {
                return Ok(Some(Line { number: at.line(), offset: at.byte(), read: row(&self.record) }));
            }
        }
    }
}

fn is_header(record: &csv::ByteRecord) -> bool {
    let text = record.get(0).unwrap_or_default();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.eq_ignore_ascii_case(COLUMNS[0].as_bytes())
}

fn row(record: &csv::ByteRecord) -> Result<Row, &'static str> {
    let field = |column: usize| record.get(column).map(<[u8]>::trim_ascii);
    let (Some(thread), Some(time), Some(action), Some(pointer), Some(size), Some(stream)) =
        (field(0), field(1), field(2), field(3), field(4), field(5))
    else {
        return Err("it has fewer than six columns");
    };
    let action = match action {
        b"allocate" | b"allocate_async" => Action::Allocate,
        b"free" | b"deallocate" | b"deallocate_async" | b"free_async" => Action::Free,
        b"allocate failure" | b"allocate_async failure" => Action::Fail,
        _ => return Err("its action is neither allocate nor free nor allocate failure"),
    };
    Ok(Row {
        thread: number(thread).ok_or("its thread is not a number")?,
        time: time_of(time).ok_or("its time is not a time")?,
        action,
        address: pointer_of(pointer).ok_or("its pointer is not an address")?,
        size: number(size).ok_or("its size is not a count of bytes")?,
        stream: pointer_of(stream).ok_or("its stream is not one")?,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    if is_number { digits.iter().try_fold(0, add) } else { None }
}

/// Addresses are hexadecimal behind `0x`; a null pointer is `(nil)` on Linux. The default stream is `0` in some versions.
fn pointer_of(text: &[u8]) -> Option<u64> {
    let digits = match text {
        b"(nil)" | b"nil" | b"NULL" | b"nullptr" | b"default" => return Some(0),
        [b'0', b'x' | b'X', digits @ ..] => digits,
        _ => return number(text),
    };
    let digits = std::str::from_utf8(digits).ok()?;
    // A sign, which the standard library would take, is none of the digits.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, 16).ok() }
}

/// `14:21:19.998533`; older versions have a colon before the fraction, too. Or seconds since 1970 with a fraction.
fn time_of(text: &[u8]) -> Option<Time> {
    const NS: u64 = 1_000_000_000;
    let mut parts = text.split(|byte| matches!(byte, b':' | b'.'));
    if !text.contains(&b':') {
        let (seconds, fraction) = (number(parts.next()?)?, parts.next());
        let ns = fraction.map_or(Some(0), fraction_ns)?;
        return parts.next().is_none().then_some(Time::Unix(seconds.checked_mul(NS)?.checked_add(ns)?));
    }
    let [hour, minute, second] = [parts.next()?, parts.next()?, parts.next()?].map(number);
    let fraction = parts.next().map_or(Some(0), fraction_ns)?;
    let (hour, minute, second) = (hour?, minute?, second?);
    let is_time = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    is_time.then(|| Time::OfDay((hour * 3600 + minute * 60 + second) * NS + fraction))
}

/// Nanoseconds from the digits behind the point.
fn fraction_ns(digits: &[u8]) -> Option<u64> {
    let digits = digits.get(..digits.len().min(9))?;
    Some(number(digits)? * 10u64.pow(9 - digits.len() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form_that_versions_wrote() {
        let check = |text: &str, time| assert_eq!(time_of(text.as_bytes()), time, "{text}");
        let second = 1_000_000_000;
        check("14:21:19.998533", Some(Time::OfDay(51_679 * second + 998_533_000)));
        check("14:21:19:998533", Some(Time::OfDay(51_679 * second + 998_533_000)));
        check("00:00:01", Some(Time::OfDay(second)));
        check("1634567890.123456", Some(Time::Unix(1_634_567_890 * second + 123_456_000)));
        check("1634567890", Some(Time::Unix(1_634_567_890 * second)));
        for none in
            ["", ":", "24:00:00", "1:2", "1:2:3:4:5", "x", "1.2.3", "99999999999999999999", "-1", "1:2:3.", "9e9"]
        {
            check(none, None);
        }
        // No hour is so late that its nanoseconds overflow.
        check("00:1700000000:00", None);
        check("18446744073709551615:18446744073709551615:18446744073709551615", None);
    }

    #[test]
    fn pointers_are_hexadecimal() {
        for (text, value) in
            [("0x7f00", Some(0x7f00)), ("(nil)", Some(0)), ("0", Some(0)), ("0x", None), ("0x+1", None)]
        {
            assert_eq!(pointer_of(text.as_bytes()), value, "{text}");
        }
        assert_eq!(pointer_of(b"0x1ffffffffffffffff"), None);
    }
}
