//! A recording as two Parquet tables, through the arrow crates.
//!
//! Rows are gathered into batches and batches into row groups, both of bounded length. Texts are dictionaries: a site's stack stands
//! once in a row group, however many rows it has.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, StringDictionaryBuilder, UInt64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use vramscope_trace::Recording;

use super::table::{Cell, Kind, Rows, event_columns, lifetime_columns, rows};
use super::{ExportError, Progress};

/// Rows that are handed to the writer at once.
const BATCH_ROWS: usize = 8 << 10;
/// Rows of a row group. Readers give each of their threads at least one.
const ROW_GROUP_ROWS: usize = 128 << 10;
/// Bytes of a row group, as they are written; texts may make rows long.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// Writes a recording's events to one table and the lifetimes of its allocations to another.
///
/// # Errors
/// If the recording cannot be read, a table cannot be written, or a number does not fit in 63 bits, which none in a real recording
/// does not.
pub fn parquet<W: Write + Send>(
    recording: &Recording,
    events: W,
    lifetimes: W,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    let mut events = Table::new(recording, events, event_columns())?;
    let mut lifetimes = Table::new(recording, lifetimes, lifetime_columns())?;
    rows(recording, &mut events, &mut lifetimes, progress)?;
    events.finish()?;
    lifetimes.finish()
}

/// A column's values that wait for a batch.
enum Values {
    Number(Int64Builder),
    Word(UInt64Builder),
    Text(StringDictionaryBuilder<Int32Type>),
}

impl Values {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Number => Self::Number(Int64Builder::with_capacity(BATCH_ROWS)),
            Kind::Word => Self::Word(UInt64Builder::with_capacity(BATCH_ROWS)),
            Kind::Text => Self::Text(StringDictionaryBuilder::new()),
        }
    }

    fn push(&mut self, cell: Cell<'_>, column: &Field) -> Result<(), ExportError> {
        match (self, cell) {
            (Self::Number(values), Cell::Number(number)) => {
                let too_large =
                    |number| ExportError::Unfit(format!("{} is {number}, which is 2⁶³ or more", column.name()));
                let number = number.map(|number| i64::try_from(number).map_err(|_| too_large(number))).transpose()?;
                values.append_option(number);
            }
            (Self::Word(values), Cell::Number(number)) => values.append_option(number),
            (Self::Text(values), Cell::Text(text)) => values.append_option(text),
            _ => unreachable!("a row has a text where its table has a column of texts"),
        }
        Ok(())
    }

    fn take(&mut self) -> ArrayRef {
        match self {
            Self::Number(values) => Arc::new(values.finish()),
            Self::Word(values) => Arc::new(values.finish()),
            Self::Text(values) => Arc::new(values.finish()),
        }
    }
}

/// A file, being written.
struct Table<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    columns: Vec<Values>,
    waiting: usize,
}

impl<W: Write + Send> Table<W> {
    fn new(
        recording: &Recording,
        out: W,
        columns: impl Iterator<Item = (&'static str, Kind)>,
    ) -> Result<Self, ExportError> {
        let (names, kinds): (Vec<_>, Vec<_>) = columns.unzip();
        let field = |(name, kind): (&&str, &Kind)| {
            let data = match kind {
                Kind::Number => DataType::Int64,
                Kind::Word => DataType::UInt64,
                Kind::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            };
            Field::new(*name, data, true)
        };
        let schema = Arc::new(Schema::new(names.iter().zip(&kinds).map(field).collect::<Vec<_>>()));
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_key_value_metadata(Some(metadata(recording)));
        for name in names.into_iter().filter(|name| goes_up(name)) {
            properties = properties
                .set_column_dictionary_enabled(name.into(), false)
                .set_column_encoding(name.into(), Encoding::DELTA_BINARY_PACKED);
        }
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties.build())).map_err(failed)?;
        Ok(Self { writer, schema, columns: kinds.into_iter().map(Values::new).collect(), waiting: 0 })
    }

    fn write_batch(&mut self) -> Result<(), ExportError> {
        let columns = self.columns.iter_mut().map(Values::take).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| wrong(&error))?;
        self.waiting = 0;
        self.writer.write(&batch).map_err(failed)?;
        if self.writer.in_progress_size() > ROW_GROUP_BYTES {
            self.writer.flush().map_err(failed)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), ExportError> {
        self.write_batch()?;
        self.writer.close().map(drop).map_err(failed)
    }
}

impl<W: Write + Send> Rows for Table<W> {
    fn row(&mut self, cells: &[Cell<'_>]) -> Result<(), ExportError> {
        for ((values, cell), column) in self.columns.iter_mut().zip(cells).zip(self.schema.fields()) {
            values.push(*cell, column)?;
        }
        self.waiting += 1;
        if self.waiting == BATCH_ROWS { self.write_batch() } else { Ok(()) }
    }
}

/// Whether a column holds moments, which go up from row to row and are seldom the same twice.
fn goes_up(column: &str) -> bool {
    column.ends_with("event") || column.ends_with("_ns")
}

/// What the recording says of itself, for who wants to know what time 0 was.
fn metadata(recording: &Recording) -> Vec<KeyValue> {
    let info = recording.info();
    let pairs = [
        ("epoch_unix_ns", info.epoch_unix_ns.to_string()),
        ("source", info.source.clone()),
        ("writer", info.writer.clone()),
        ("alloc_conf", info.alloc_conf.clone()),
    ];
    pairs.into_iter().map(|(key, value)| KeyValue::new(format!("vramscope.{key}"), value)).collect()
}

/// The output's own error, where it is one.
fn failed(error: ParquetError) -> ExportError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => ExportError::Output(*error),
            Err(error) => ExportError::Output(std::io::Error::other(error)),
        },
        error => ExportError::Output(std::io::Error::other(error)),
    }
}

fn wrong(error: &ArrowError) -> ExportError {
    ExportError::Unfit(error.to_string())
}
