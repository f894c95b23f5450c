//! Writes a recording as two tables of comma-separated values (RFC 4180).
//!
//! Lines end in CR LF; fields are quoted where necessary. The first line names the columns, and a
//! missing value is an empty field. Addresses are hexadecimal.

use std::fmt::Write as _;
use std::io::Write;

use csv::{ByteRecord, ErrorKind, Terminator, Writer, WriterBuilder};
use vramscope_trace::Recording;

use super::error::{ExportError, Progress, Result};
use super::table::{Cell, ColumnType, TableWriter, event_columns, lifetime_columns, write_tables};

/// Writes a recording as two CSV tables: its events, and the lifetimes of its allocations.
///
/// ```
/// use vramscope_formats::export;
///
/// # let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
/// # encoder.flush();
/// # let mut recording = vramscope_trace::Recording::new();
/// # for chunk in encoder.take_output() {
/// #     recording.push(&chunk.bytes).unwrap();
/// # }
/// let (mut events, mut lifetimes) = (Vec::new(), Vec::new());
/// export::csv(&recording, &mut events, &mut lifetimes, &mut |_done, _total| {}).unwrap();
/// assert!(events.starts_with(b"event,device,time_ns,kind,address,"));
/// ```
///
/// # Errors
/// If the recording cannot be read or a table cannot be written.
pub fn csv<W: Write>(
    recording: &Recording,
    events: W,
    lifetimes: W,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    let mut events = CsvTable::new(events, event_columns())?;
    let mut lifetimes = CsvTable::new(lifetimes, lifetime_columns())?;
    write_tables(recording, &mut events, &mut lifetimes, progress)?;
    events.finish()?;
    lifetimes.finish()
}

/// A CSV file that is being written: the table of events or of lifetimes.
struct CsvTable<W: Write> {
    writer: Writer<W>,
    record: ByteRecord,
    /// Buffer for the text of a number.
    number: String,
}

impl<W: Write> CsvTable<W> {
    fn new(out: W, columns: impl Iterator<Item = (&'static str, ColumnType)>) -> Result<Self> {
        let mut table = Self::without_header(out);
        let names: Vec<_> = columns.map(|(name, _)| Cell::Text(Some(name))).collect();
        table.write_row(&names)?;
        Ok(table)
    }

    /// Creates a table whose line of column names is not written yet.
    fn without_header(out: W) -> Self {
        let writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(out);
        Self { writer, record: ByteRecord::new(), number: String::new() }
    }

    /// Flushes the buffered rows to the output. Rows are lost if this is not called.
    fn finish(mut self) -> Result {
        Ok(self.writer.flush()?)
    }
}

impl<W: Write> TableWriter for CsvTable<W> {
    fn write_row(&mut self, cells: &[Cell<'_>]) -> Result {
        self.record.clear();
        for cell in cells {
            self.number.clear();
            // Writing to a String does not fail.
            let field = match *cell {
                Cell::Integer(Some(integer)) => {
                    let _ = write!(self.number, "{integer}");
                    self.number.as_str()
                }
                Cell::Address(Some(address)) => {
                    let _ = write!(self.number, "{address:#x}");
                    self.number.as_str()
                }
                Cell::Text(Some(text)) => text,
                Cell::Integer(None) | Cell::Address(None) | Cell::Text(None) => "",
            };
            self.record.push_field(field.as_bytes());
        }
        self.writer.write_byte_record(&self.record).map_err(|error| match error.into_kind() {
            ErrorKind::Io(error) => ExportError::Output(error),
            other => ExportError::Output(std::io::Error::other(format!("{other:?}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_only_if_necessary() {
        let check = |cells: &[Cell<'_>], expected: &str| {
            let mut out = Vec::new();
            let mut table = CsvTable::without_header(&mut out);
            table.write_row(cells).and_then(|()| table.finish()).expect("memory can be written");
            assert_eq!(String::from_utf8(out).expect("CSV of text is text"), expected);
        };
        check(&[Cell::Integer(Some(7)), Cell::Integer(None), Cell::Text(None)], "7,,\r\n");
        check(&[Cell::Text(Some("plain text")), Cell::Text(Some("a,b"))], "plain text,\"a,b\"\r\n");
        check(&[Cell::Text(Some("say \"no\"")), Cell::Text(Some("\n"))], "\"say \"\"no\"\"\",\"\n\"\r\n");
        check(&[Cell::Address(Some(0x7f00)), Cell::Address(None), Cell::Integer(Some(0))], "0x7f00,,0\r\n");
    }
}
