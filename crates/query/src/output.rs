//! Writes rows as a table, JSON or CSV.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, Table, presets};
use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::json;
use vramscope_collector::is_control;

/// Number of blanks between the columns of a table.
const GAP: u16 = 2;
/// Number of rows of a table for which the widths of columns are fixed. Longer tables continue with
/// a new header, so that a bounded number of rows is in memory.
const BLOCK_ROWS: usize = 10_000;

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// Columns of text, for a terminal.
    #[default]
    Table,
    /// One JSON object: `{"columns": [{"name", "type"}], "rows": [[…]], "has_more"}`.
    Json,
    /// Comma-separated values with a header, as RFC 4180 has them.
    Csv,
}

/// Returns the JSON type of a column's values.
fn type_name(field: &Field) -> String {
    let data_type = field.data_type();
    match data_type {
        data_type if data_type.is_integer() => "integer".to_owned(),
        data_type if data_type.is_numeric() => "number".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".to_owned(),
        DataType::Timestamp(..) => "time".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

/// Writes rows in one format.
pub(crate) struct RowWriter<'a> {
    out: &'a mut dyn Write,
    format: OutputFormat,
    schema: SchemaRef,
    /// Rows of the table that are not written yet.
    block: Vec<Vec<String>>,
    rows: u64,
}

impl<'a> RowWriter<'a> {
    /// Begins to write rows with these columns.
    pub(crate) fn new(out: &'a mut dyn Write, format: OutputFormat, schema: SchemaRef) -> io::Result<Self> {
        let names: Vec<String> = schema.fields().iter().map(|field| escape(field.name())).collect();
        match format {
            OutputFormat::Table => (),
            OutputFormat::Json => {
                let columns =
                    schema.fields().iter().map(|field| json!({"name": field.name(), "type": type_name(field)}));
                write!(out, "{{\"columns\":{},\"rows\":[", serde_json::Value::from_iter(columns))?;
            }
            OutputFormat::Csv => write_csv(out, &names)?,
        }
        Ok(Self { out, format, schema, block: Vec::new(), rows: 0 })
    }

    /// Returns the number of rows so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes the rows of a batch.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let options = FormatOptions::new().with_display_error(true);
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options).map_err(unprintable));
        let columns = columns.collect::<io::Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            let text = |index: usize| columns[index].value(row).try_to_string().map_err(unprintable);
            match self.format {
                OutputFormat::Table | OutputFormat::Csv => {
                    let cells = (0..columns.len()).map(|index| Ok(escape(&text(index)?)));
                    let cells = cells.collect::<io::Result<Vec<_>>>()?;
                    if self.format == OutputFormat::Csv {
                        write_csv(self.out, &cells)?;
                    } else {
                        self.block.push(cells);
                    }
                }
                OutputFormat::Json => {
                    let values = (0..columns.len()).map(|index| {
                        let array = batch.column(index);
                        if array.is_null(row) || *array.data_type() == DataType::Null {
                            return Ok(serde_json::Value::Null);
                        }
                        Ok(json_value(array.data_type(), text(index)?))
                    });
                    let values = values.collect::<io::Result<serde_json::Value>>()?;
                    write!(self.out, "{}{values}", if self.rows == 0 { "" } else { "," })?;
                }
            }
            self.rows += 1;
            if self.block.len() >= BLOCK_ROWS {
                self.write_block()?;
            }
        }
        Ok(())
    }

    /// Writes the rows of `block` below a header, and empties `block`.
    fn write_block(&mut self) -> io::Result<()> {
        let mut table = Table::new();
        let fields = self.schema.fields();
        table.load_style(presets::NOTHING).set_header(fields.iter().map(|field| Cell::new(escape(field.name()))));
        for (column, field) in table.column_iter_mut().zip(fields) {
            column.set_padding((0, GAP));
            let is_number = field.data_type().is_numeric();
            column.set_cell_alignment(if is_number { CellAlignment::Right } else { CellAlignment::Left });
        }
        table.add_rows(std::mem::take(&mut self.block));
        table.lines().try_for_each(|line| writeln!(self.out, "{}", line.trim_end()))
    }

    /// Writes what the format needs after the last row. `has_more` says whether rows beyond the
    /// limit were left out.
    pub(crate) fn finish(mut self, has_more: bool) -> io::Result<()> {
        match self.format {
            OutputFormat::Table if !self.block.is_empty() || self.rows == 0 => self.write_block(),
            OutputFormat::Json => writeln!(self.out, "],\"has_more\":{has_more}}}"),
            OutputFormat::Table | OutputFormat::Csv => Ok(()),
        }
    }
}

/// Returns the error of a value that cannot be written as text.
fn unprintable(error: ArrowError) -> io::Error {
    io::Error::other(error)
}

/// Returns a value that is not null as JSON. Numbers that JSON does not have are null.
fn json_value(data_type: &DataType, text: String) -> serde_json::Value {
    match data_type {
        data_type if data_type.is_numeric() || *data_type == DataType::Boolean => {
            serde_json::from_str(&text).unwrap_or_default()
        }
        _ => serde_json::Value::String(text),
    }
}

/// Writes a line of CSV.
fn write_csv(out: &mut dyn Write, cells: &[String]) -> io::Result<()> {
    for (index, cell) in cells.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        if cell.contains([',', '"']) {
            write!(out, "{separator}\"{}\"", cell.replace('"', "\"\""))?;
        } else {
            write!(out, "{separator}{cell}")?;
        }
    }
    out.write_all(b"\r\n")
}

/// Returns a text of an archive with control characters escaped, so that it stays on one line and
/// does nothing to a terminal.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}
