//! The lines of a log.

use crate::error::ReadError;

/// The names of an RMM log's columns, in order, as its first line lists them.
pub(crate) const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// The first character of a comment line of an RMM log. RMM writes no comments; users add them.
pub(crate) const COMMENT: u8 = b'#';

/// The action that a line of an RMM log reports: an allocation, a free or a failed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allocate,
    Free,
    /// The upstream resource could not satisfy a request.
    AllocateFailed,
}

/// The time in a line of an RMM log: a time of day, or a time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Nanoseconds since midnight in local time; the log has no dates.
    OfDay(u64),
    /// Nanoseconds since 1970.
    Unix(u64),
}

/// The fields of a valid line of an RMM log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) thread: u64,
    pub(super) time: Time,
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
}

/// A line of an RMM log with its position in the file. The line may be invalid.
pub(super) struct Line {
    /// Line number, from 1.
    number: u64,
    /// Bytes before the line.
    pub(super) offset: u64,
    /// The line's fields, or the mistake in the line.
    pub(super) row: Result<Row, &'static str>,
}

impl Line {
    /// Returns a read error at this line's position; `problem` describes the mistake in the line.
    pub(super) fn error(&self, problem: impl std::fmt::Display) -> ReadError {
        ReadError::at(self.offset as usize, format!("this is not a line of an RMM log: {problem}"))
            .with_line(self.number as usize, 1)
    }
}

/// Reads an RMM log line by line, and skips the lines that name the columns.
pub(super) struct LogReader<'a> {
    reader: csv::Reader<&'a [u8]>,
    record: csv::ByteRecord,
}

impl<'a> LogReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        // RMM never quotes a field, and a stray quote must not consume the rest of the file.
        let mut builder = csv::ReaderBuilder::new();
        builder.has_headers(false).flexible(true).quoting(false).comment(Some(COMMENT));
        let reader = builder.from_reader(bytes);
        Self { reader, record: csv::ByteRecord::new() }
    }

    /// Returns the next line that is not a header, or `None` at the end. Headers may occur
    /// anywhere, because a log that was continued has a second one.
    pub(super) fn next(&mut self) -> Result<Option<Line>, ReadError> {
        loop {
            let at = self.reader.position().clone();
            let has_line = self.reader.read_byte_record(&mut self.record).map_err(|error| {
                ReadError::at(at.byte() as usize, "this line cannot be read")
                    .with_line(at.line() as usize, 1)
                    .with_source(error)
            })?;
            if !has_line {
                return Ok(None);
            }
            let at = self.record.position().cloned().unwrap_or(at);
            if !is_header(&self.record) {
                return Ok(Some(Line { number: at.line(), offset: at.byte(), row: parse_row(&self.record) }));
            }
        }
    }
}

/// Returns true for a line that names the columns: its first field is `Thread`, in any case, and
/// may follow a byte order mark. False for every other line.
fn is_header(record: &csv::ByteRecord) -> bool {
    let text = record.get(0).unwrap_or_default();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    text.eq_ignore_ascii_case(COLUMNS[0].as_bytes())
}

/// Parses the first six fields of a line and ignores others. The error describes the mistake in the
/// line, as part of a message.
fn parse_row(record: &csv::ByteRecord) -> Result<Row, &'static str> {
    let field = |column: usize| record.get(column).map(<[u8]>::trim_ascii);
    let (Some(thread), Some(time), Some(action), Some(pointer), Some(size), Some(stream)) =
        (field(0), field(1), field(2), field(3), field(4), field(5))
    else {
        return Err("fewer than six columns");
    };
    let action = match action {
        b"allocate" | b"allocate_async" => Action::Allocate,
        b"free" | b"deallocate" | b"deallocate_async" | b"free_async" => Action::Free,
        b"allocate failure" | b"allocate_async failure" => Action::AllocateFailed,
        _ => return Err("the action is not allocate, free or allocate failure"),
    };
    Ok(Row {
        thread: parse_number(thread).ok_or("the thread is not a number")?,
        time: parse_time(time).ok_or("the time is invalid")?,
        action,
        address: parse_pointer(pointer).ok_or("the pointer is not an address")?,
        size: parse_number(size).ok_or("the size is not a number of bytes")?,
        stream: parse_pointer(stream).ok_or("the stream is not a stream handle")?,
    })
}

/// Parses a decimal number; `None` for an empty text, a sign, other characters, or more than 64
/// bits.
fn parse_number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    if is_number { digits.iter().try_fold(0, add) } else { None }
}

/// Parses an address or stream handle: hexadecimal after `0x`, otherwise decimal; 0 for `(nil)`,
/// `nil`, `NULL`, `nullptr` and `default`. Returns `None` for any other text.
fn parse_pointer(text: &[u8]) -> Option<u64> {
    let digits = match text {
        b"(nil)" | b"nil" | b"NULL" | b"nullptr" | b"default" => return Some(0),
        [b'0', b'x' | b'X', digits @ ..] => digits,
        _ => return parse_number(text),
    };
    let digits = std::str::from_utf8(digits).ok()?;
    // The standard library would accept a sign.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, 16).ok() }
}

/// Parses a time of day such as `14:21:19.998533` (older versions write a colon before the
/// fraction), or seconds since 1970 with a fraction. Returns `None` for any other text.
fn parse_time(text: &[u8]) -> Option<Time> {
    /// Number of nanoseconds in a second.
    const SECOND_NS: u64 = 1_000_000_000;
    let mut parts = text.split(|byte| matches!(byte, b':' | b'.'));
    if !text.contains(&b':') {
        let (seconds, fraction) = (parse_number(parts.next()?)?, parts.next());
        let ns = fraction.map_or(Some(0), fraction_ns)?;
        return parts.next().is_none().then_some(Time::Unix(seconds.checked_mul(SECOND_NS)?.checked_add(ns)?));
    }
    let [hour, minute, second] = [parts.next()?, parts.next()?, parts.next()?].map(parse_number);
    let fraction = parts.next().map_or(Some(0), fraction_ns)?;
    let (hour, minute, second) = (hour?, minute?, second?);
    let is_time = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    is_time.then(|| Time::OfDay((hour * 3600 + minute * 60 + second) * SECOND_NS + fraction))
}

/// Converts the digits after the decimal point of a second to nanoseconds; `None` if they are not
/// digits. Digits after the ninth are ignored.
fn fraction_ns(digits: &[u8]) -> Option<u64> {
    let digits = digits.get(..digits.len().min(9))?;
    Some(parse_number(digits)? * 10u64.pow(9 - digits.len() as u32))
}

/// Number of nanoseconds in a day.
pub(super) const DAY_NS: i64 = 86_400_000_000_000;
/// Maximum time, in nanoseconds, by which a time of day may be before that of the previous line
/// without counting as a time of the next day. Threads write with a delay, and clocks are set back
/// an hour in autumn.
const BACKWARD_NS: i64 = 7_200_000_000_000;

/// Converts times of day to times that continue to grow after midnight.
///
/// The log has neither dates nor a time zone, so days always have 24 hours here.
#[derive(Debug, Default)]
pub(super) struct TimeUnwrapper {
    /// Time of the previous line, in nanoseconds since 1970 or since midnight of the first day.
    last_ns: Option<i64>,
}

impl TimeUnwrapper {
    /// Returns the time of the next line in nanoseconds: since 1970 if `time` is, otherwise since
    /// midnight of the log's first day. Call this for each line in order.
    pub(super) fn unwrap_ns(&mut self, time: Time) -> i64 {
        let ns = match time {
            Time::Unix(ns) => i64::try_from(ns).unwrap_or(i64::MAX),
            Time::OfDay(ns) => {
                // Below 2^47, so that adding the previous line's day cannot overflow.
                let of_day = ns as i64;
                match self.last_ns {
                    Some(last) if last < i64::MAX / 2 => {
                        let earliest = last - BACKWARD_NS;
                        of_day + DAY_NS * (earliest - of_day).div_euclid(DAY_NS) + DAY_NS
                    }
                    _ => of_day,
                }
            }
        };
        self.last_ns = Some(ns);
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_formats_of_all_versions_are_parsed() {
        let check = |text: &str, time| assert_eq!(parse_time(text.as_bytes()), time, "{text}");
        let second = 1_000_000_000;
        check("14:21:19.998533", Some(Time::OfDay(51_679 * second + 998_533_000)));
        check("14:21:19:998533", Some(Time::OfDay(51_679 * second + 998_533_000)));
        check("00:00:01", Some(Time::OfDay(second)));
        check("1634567890.123456", Some(Time::Unix(1_634_567_890 * second + 123_456_000)));
        check("1634567890", Some(Time::Unix(1_634_567_890 * second)));
        for invalid in
            ["", ":", "24:00:00", "1:2", "1:2:3:4:5", "x", "1.2.3", "99999999999999999999", "-1", "1:2:3.", "9e9"]
        {
            check(invalid, None);
        }
        // Values that overflow when converted to nanoseconds.
        check("00:1700000000:00", None);
        check("18446744073709551615:18446744073709551615:18446744073709551615", None);
    }

    #[test]
    fn pointers_are_parsed_as_hexadecimal() {
        for (text, value) in
            [("0x7f00", Some(0x7f00)), ("(nil)", Some(0)), ("0", Some(0)), ("0x", None), ("0x+1", None)]
        {
            assert_eq!(parse_pointer(text.as_bytes()), value, "{text}");
        }
        assert_eq!(parse_pointer(b"0x1ffffffffffffffff"), None);
    }
}
