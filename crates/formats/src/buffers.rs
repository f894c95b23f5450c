//! Tables of buffers to place, as MiniMalloc (github.com/google/minimalloc) reads and writes them.
//!
//! The first line names the columns: `id,lower,upper,size`, in any order. A buffer lives from
//! `lower` (inclusive) to `upper` (exclusive). MiniMalloc's other names are read, too: `buffer` and
//! `buffer_id`, `begin` and `start`; `end` is the last time at which a buffer lives. A column
//! `alignment` is optional: a buffer's offset must be a multiple of it. The columns `gaps` and
//! `hint` are accepted and ignored. A placement has a further column, `offset`.

use std::io;

use vramscope_trace::ByteSize;

use crate::error::ReadError;
use crate::limits::{Limits, MemoryBudget};

/// Memory that a line of a table of buffers takes in addition to its text, in bytes (measured).
const LINE_BYTES: usize = 340;

/// The accepted names of each column of a table of buffers; the first is MiniMalloc's own.
const COLUMNS: [(ColumnMeaning, &[&str]); 8] = [
    (ColumnMeaning::Id, &["id", "buffer", "buffer_id"]),
    (ColumnMeaning::Lower, &["lower", "begin", "start"]),
    (ColumnMeaning::Upper, &["upper"]),
    (ColumnMeaning::LastTime, &["end"]),
    (ColumnMeaning::Size, &["size"]),
    (ColumnMeaning::Alignment, &["alignment"]),
    (ColumnMeaning::Ignored, &["hint", "gaps"]),
    (ColumnMeaning::Offset, &["offset"]),
];

/// The meaning of a column of a table of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnMeaning {
    Id,
    Lower,
    /// The first time at which the buffer no longer lives.
    Upper,
    /// The last time at which the buffer lives.
    LastTime,
    Size,
    Alignment,
    Ignored,
    Offset,
}

/// A buffer to place in memory: its lifetime, size and alignment, from one line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferRow {
    /// The first time at which the buffer lives.
    pub lower: u64,
    /// The first time at which it no longer lives; greater than `lower`.
    pub upper: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number of bytes that the buffer's offset must be a multiple of; at least 1.
    pub alignment: u64,
}

/// A table of buffers to place in memory, as MiniMalloc reads it, with its original lines.
#[derive(Clone, Debug, Default)]
pub struct BufferTable {
    /// The first line, with the names of the columns.
    header: csv::ByteRecord,
    /// The other lines, unchanged, for [`write_placement`](Self::write_placement).
    lines: Vec<csv::ByteRecord>,
    rows: Vec<BufferRow>,
}

/// Returns true if the first line of a file names the columns of a table of buffers.
pub(crate) fn is_buffer_table(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let names: Vec<&[u8]> = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).collect();
    [ColumnMeaning::Id, ColumnMeaning::Lower, ColumnMeaning::Size]
        .iter()
        .all(|&wanted| names.iter().any(|name| column(name) == Some(wanted)))
}

impl BufferTable {
    /// Reads a table.
    ///
    /// # Errors
    /// [`ReadError`] with the line of the problem: a column that is missing, unknown or there
    /// twice, a value that is not a whole number, a lifetime without a moment, or a line with which
    /// the table exceeds [`Limits::max_bytes`].
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self, ReadError> {
        let bytes = without_byte_order_mark(bytes);
        let mut reader = csv::ReaderBuilder::new().quoting(false).trim(csv::Trim::All).from_reader(bytes);
        let header = reader.byte_headers().map_err(|error| read_error(&error))?.clone();
        let columns = columns(&header)?;
        let mut table = Self { header, ..Self::default() };
        let mut budget = MemoryBudget::new(limits.max_bytes);
        for line in reader.into_byte_records() {
            let line = line.map_err(|error| read_error(&error))?;
            if budget.spend(LINE_BYTES.saturating_add(line.as_slice().len())).is_err() {
                let limit = ByteSize(limits.max_bytes);
                return Err(error_in(&line, format!("the table takes more than {limit} of memory: pack it in parts")));
            }
            table.rows.push(parse_row(&columns, &line)?);
            table.lines.push(line);
        }
        Ok(table)
    }

    /// Returns the buffers in the order of the file's lines.
    #[must_use]
    pub fn rows(&self) -> &[BufferRow] {
        &self.rows
    }

    /// Writes the table with the offset of each buffer as a further column.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn write_placement(&self, offsets: &[u64], out: impl io::Write) -> io::Result<()> {
        let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Never).from_writer(out);
        writer.write_byte_record(&with_field(&self.header, b"offset"))?;
        for (line, offset) in self.lines.iter().zip(offsets) {
            writer.write_byte_record(&with_field(line, offset.to_string().as_bytes()))?;
        }
        writer.flush()
    }
}

/// Returns a copy of a CSV line with one more field at its end.
fn with_field(line: &csv::ByteRecord, field: &[u8]) -> csv::ByteRecord {
    let mut longer = line.clone();
    longer.push_field(field);
    longer
}

/// Returns the bytes after a UTF-8 byte order mark, or all if there is none.
fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Returns the meaning of the column with this name, or `None` if the name is unknown.
fn column(name: &[u8]) -> Option<ColumnMeaning> {
    let is_named = |names: &[&str]| names.iter().any(|one| name.eq_ignore_ascii_case(one.as_bytes()));
    COLUMNS.iter().find(|(_, names)| is_named(names)).map(|&(column, _)| column)
}

/// Returns the meanings of the columns that a table's first line names, in order. Fails for an
/// unknown, repeated or missing column.
fn columns(header: &csv::ByteRecord) -> Result<Vec<ColumnMeaning>, ReadError> {
    let error = |message: String| ReadError::at(0, message).with_line(1, 1);
    let mut columns = Vec::new();
    for name in header {
        let column = column(name).ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            error(format!("column {name:?} is unknown; the columns are id,lower,upper,size and may be alignment"))
        })?;
        if column == ColumnMeaning::Offset {
            return Err(error("buffers with a given offset are not supported: remove the column offset".into()));
        }
        if column != ColumnMeaning::Ignored && columns.contains(&column) {
            return Err(error(format!("column {:?} is there twice", String::from_utf8_lossy(name))));
        }
        columns.push(column);
    }
    if columns.contains(&ColumnMeaning::Upper) && columns.contains(&ColumnMeaning::LastTime) {
        return Err(error("the columns upper and end contradict each other: remove one".into()));
    }
    let has_end = columns.contains(&ColumnMeaning::Upper) || columns.contains(&ColumnMeaning::LastTime);
    let missing = [(ColumnMeaning::Id, "id"), (ColumnMeaning::Lower, "lower"), (ColumnMeaning::Size, "size")]
        .into_iter()
        .find_map(|(column, name)| (!columns.contains(&column)).then_some(name))
        .or((!has_end).then_some("upper"));
    match missing {
        Some(name) => Err(error(format!("column {name} is missing; the columns are id,lower,upper,size"))),
        None => Ok(columns),
    }
}

/// Parses a line of the table as a buffer; `columns` are the meanings of its fields.
fn parse_row(columns: &[ColumnMeaning], line: &csv::ByteRecord) -> Result<BufferRow, ReadError> {
    let error = |message: String| error_in(line, message);
    let mut row = BufferRow { lower: 0, upper: 0, size: 0, alignment: 1 };
    for (&column, field) in columns.iter().zip(line) {
        if matches!(column, ColumnMeaning::Id | ColumnMeaning::Ignored | ColumnMeaning::Offset) {
            continue;
        }
        let number = std::str::from_utf8(field).ok().and_then(|text| text.parse::<u64>().ok()).ok_or_else(|| {
            error(format!("{:?} is not a whole number from 0 to 2^64 - 1", String::from_utf8_lossy(field)))
        })?;
        match column {
            ColumnMeaning::Lower => row.lower = number,
            ColumnMeaning::Upper => row.upper = number,
            ColumnMeaning::LastTime => row.upper = number.saturating_add(1),
            ColumnMeaning::Size => row.size = number,
            ColumnMeaning::Alignment => row.alignment = number.max(1),
            ColumnMeaning::Id | ColumnMeaning::Ignored | ColumnMeaning::Offset => {}
        }
    }
    if row.lower >= row.upper {
        return Err(error(format!(
            "the buffer lives from {} to {}: its end must be after its start",
            row.lower, row.upper
        )));
    }
    Ok(row)
}

/// Returns an error with the message `message` at the position of a line.
fn error_in(line: &csv::ByteRecord, message: String) -> ReadError {
    let (offset, number) = line.position().map_or((0, 1), |at| (at.byte() as usize, at.line() as usize));
    ReadError::at(offset, message).with_line(number, 1)
}

/// Returns the error for a line that the CSV reader cannot read.
fn read_error(error: &csv::Error) -> ReadError {
    let message = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("this line has {len} fields, the first line {expected_len}")
        }
        _ => "this line cannot be read".to_owned(),
    };
    let (offset, line) = error.position().map_or((0, 1), |at| (at.byte() as usize, at.line() as usize));
    ReadError::at(offset, message).with_line(line, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InputFormat, sniff};

    #[test]
    fn tables_are_read_and_written_with_offsets() {
        let check = |text: &str, expected: &[(u64, u64, u64, u64)], written: &str| {
            assert_eq!(sniff(text.as_bytes()), Some(InputFormat::BufferTable), "{text}");
            let table = BufferTable::read(text.as_bytes(), &Limits::default()).expect("the table is valid");
            let rows: Vec<_> = table.rows().iter().map(|row| (row.lower, row.upper, row.size, row.alignment)).collect();
            assert_eq!(rows, expected, "{text}");
            let mut out = Vec::new();
            let offsets: Vec<u64> = (0..rows.len() as u64).map(|index| index * 64).collect();
            table.write_placement(&offsets, &mut out).expect("writing to memory succeeds");
            assert_eq!(String::from_utf8_lossy(&out), written);
        };
        check(
            "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4",
            &[(0, 3, 4, 1), (3, 9, 4, 1)],
            "id,lower,upper,size,offset\nb1,0,3,4,0\nb2,3,9,4,64\n",
        );
        check(
            "\u{feff}size,buffer_id,START,end,alignment,gaps\r\n4, x ,0,2,64,1-2\r\n",
            &[(0, 3, 4, 64)],
            "size,buffer_id,START,end,alignment,gaps,offset\n4,x,0,2,64,1-2,0\n",
        );
    }

    #[test]
    fn errors_name_the_line() {
        let check = |text: &str, line: usize, message: &str| {
            let error = BufferTable::read(text.as_bytes(), &Limits::default()).expect_err(text);
            assert_eq!((error.line_column, error.message.as_str()), (Some((line, 1)), message), "{text}");
        };
        check("id,lower,size\n", 1, "column upper is missing; the columns are id,lower,upper,size");
        check("id,lower,upper,upper,size\n", 1, "column \"upper\" is there twice");
        check(
            "id,lower,upper,size,colour\n",
            1,
            "column \"colour\" is unknown; the columns are id,lower,upper,size and may be alignment",
        );
        check("id,lower,upper,size\na,0,1,1\nb,0,1\n", 3, "this line has 3 fields, the first line 4");
        check("id,lower,upper,size\na,0,1,-1\n", 2, "\"-1\" is not a whole number from 0 to 2^64 - 1");
        check("id,lower,upper,size\na,1,1,1\n", 2, "the buffer lives from 1 to 1: its end must be after its start");
    }

    #[test]
    fn table_beyond_the_memory_limit_is_an_error() {
        let limits = Limits { max_bytes: 1 << 10, ..Limits::default() };
        let text = format!("id,lower,upper,size\n{}", "b,0,1,4\n".repeat(3));
        let error = BufferTable::read(text.as_bytes(), &limits).expect_err("three lines take more than 1 KiB");
        assert_eq!(error.line_column, Some((4, 1)));
        assert_eq!(error.message, "the table takes more than 1 KiB of memory: pack it in parts");
        assert!(BufferTable::read(&text.as_bytes()[..text.len() - 8], &limits).is_ok());
    }

    #[test]
    fn other_files_are_not_tables() {
        for text in ["", "Thread,Time,Action,Pointer,Size,Stream\n", "{\"id\": 1}", "id,size\n"] {
            assert_ne!(sniff(text.as_bytes()), Some(InputFormat::BufferTable), "{text}");
        }
    }
}
