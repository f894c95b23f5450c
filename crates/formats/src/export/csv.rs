//! A recording as two tables of comma-separated values, by RFC 4180: lines end in CR LF, and a field with a comma, a quote or the
//! end of a line in it stands in quotes, the quotes in it doubled. The first line names the columns; an empty field is none.

use std::io::Write;

use vramscope_trace::Recording;

use super::table::{Cell, Kind, Rows, event_columns, lifetime_columns, rows};
use super::{ExportError, Progress};

/// Writes a recording's events to one table and the lifetimes of its allocations to another.
///
/// # Errors
/// If the recording cannot be read or a table cannot be written.
pub fn csv<W: Write>(
    recording: &Recording,
    events: W,
    lifetimes: W,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    let mut events = Table::new(events, event_columns())?;
    let mut lifetimes = Table::new(lifetimes, lifetime_columns())?;
    rows(recording, &mut events, &mut lifetimes, progress)
}

struct Table<W> {
    out: W,
    line: String,
}

impl<W: Write> Table<W> {
    fn new(out: W, columns: impl Iterator<Item = (&'static str, Kind)>) -> Result<Self, ExportError> {
        let mut table = Self { out, line: String::new() };
        let names: Vec<_> = columns.map(|(name, _)| Cell::Text(Some(name))).collect();
        table.row(&names)?;
        Ok(table)
    }
}

impl<W: Write> Rows for Table<W> {
    fn row(&mut self, cells: &[Cell<'_>]) -> Result<(), ExportError> {
        self.line.clear();
        for (index, cell) in cells.iter().enumerate() {
            if index > 0 {
                self.line.push(',');
            }
            match cell {
                Cell::Number(Some(number)) => push_number(&mut self.line, *number),
                Cell::Text(Some(text)) => push_text(&mut self.line, text),
                Cell::Number(None) | Cell::Text(None) => {}
            }
        }
        self.line.push_str("\r\n");
        Ok(self.out.write_all(self.line.as_bytes())?)
    }
}

fn push_number(line: &mut String, number: u64) {
    use std::fmt::Write as _;
    // A String takes all that is written to it.
    let _ = write!(line, "{number}");
}

fn push_text(line: &mut String, text: &str) {
    if !text.contains([',', '"', '\r', '\n']) {
        line.push_str(text);
        return;
    }
    line.push('"');
    for (index, part) in text.split('"').enumerate() {
        if index > 0 {
            line.push_str("\"\"");
        }
        line.push_str(part);
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_where_it_has_to_be() {
        let check = |cells: &[Cell<'_>], expected: &str| {
            let mut out = Vec::new();
            Table { out: &mut out, line: String::new() }.row(cells).expect("memory can be written");
            assert_eq!(String::from_utf8(out).expect("text stays text"), expected);
        };
        check(&[Cell::Number(Some(7)), Cell::Number(None), Cell::Text(None)], "7,,\r\n");
        check(&[Cell::Text(Some("plain text")), Cell::Text(Some("a,b"))], "plain text,\"a,b\"\r\n");
        check(&[Cell::Text(Some("say \"no\"")), Cell::Text(Some("\n"))], "\"say \"\"no\"\"\",\"\n\"\r\n");
    }
}
