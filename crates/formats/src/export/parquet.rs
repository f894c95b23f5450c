//! Writes a recording as two Parquet tables, with the arrow crates.
//!
//! TableWriter are collected in batches and batches in row groups, both of bounded size. Texts are
//! dictionary encoded: a row group stores a site's stack once.

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

use super::error::{ExportError, Progress};
use super::table::{Cell, ColumnType, TableWriter, event_columns, lifetime_columns, write_tables};

/// TableWriter passed to the Parquet writer at once.
const BATCH_ROWS: usize = 8 << 10;
/// TableWriter of a row group. Readers give each of their threads at least one row group.
const ROW_GROUP_ROWS: usize = 128 << 10;
/// Maximum size of a row group in bytes, because texts may make rows long.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// Writes the events of a recording to one table and the lifetimes of its allocations to another.
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
/// export::parquet(&recording, &mut events, &mut lifetimes, &mut |_done, _total| {}).unwrap();
/// assert!(events.starts_with(b"PAR1"));
/// ```
///
/// # Errors
/// If the recording cannot be read, a table cannot be written, or a number is 2⁶³ or more, which
/// does not occur in real recordings.
pub fn parquet<W: Write + Send>(
    recording: &Recording,
    events: W,
    lifetimes: W,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    let mut events = ParquetTable::new(recording, events, event_columns())?;
    let mut lifetimes = ParquetTable::new(recording, lifetimes, lifetime_columns())?;
    write_tables(recording, &mut events, &mut lifetimes, progress)?;
    events.finish()?;
    lifetimes.finish()
}

/// The values of a column that were not written yet.
enum ColumnValues {
    Signed(Int64Builder),
    Unsigned(UInt64Builder),
    Text(StringDictionaryBuilder<Int32Type>),
}

impl ColumnValues {
    fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Integer => Self::Signed(Int64Builder::with_capacity(BATCH_ROWS)),
            ColumnType::Address | ColumnType::Handle => Self::Unsigned(UInt64Builder::with_capacity(BATCH_ROWS)),
            ColumnType::Text => Self::Text(StringDictionaryBuilder::new()),
        }
    }

    fn push(&mut self, cell: Cell<'_>, column: &Field) -> Result<(), ExportError> {
        match (self, cell) {
            (Self::Signed(values), Cell::Integer(number)) => {
                let too_large = |number| {
                    ExportError::Unsupported(format!("{} is {number}; Parquet integers are below 2⁶³", column.name()))
                };
                let number = number.map(|number| i64::try_from(number).map_err(|_| too_large(number))).transpose()?;
                values.append_option(number);
            }
            (Self::Unsigned(values), Cell::Integer(number) | Cell::Address(number)) => values.append_option(number),
            (Self::Text(values), Cell::Text(text)) => values.append_option(text),
            _ => unreachable!("the type of a cell is the type of its column"),
        }
        Ok(())
    }

    fn take(&mut self) -> ArrayRef {
        match self {
            Self::Signed(values) => Arc::new(values.finish()),
            Self::Unsigned(values) => Arc::new(values.finish()),
            Self::Text(values) => Arc::new(values.finish()),
        }
    }
}

/// A table that is being written.
struct ParquetTable<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    columns: Vec<ColumnValues>,
    pending_rows: usize,
}

impl<W: Write + Send> ParquetTable<W> {
    fn new(
        recording: &Recording,
        out: W,
        columns: impl Iterator<Item = (&'static str, ColumnType)>,
    ) -> Result<Self, ExportError> {
        let (names, kinds): (Vec<_>, Vec<_>) = columns.unzip();
        let field = |(name, kind): (&&str, &ColumnType)| {
            let data = match kind {
                ColumnType::Integer => DataType::Int64,
                ColumnType::Address | ColumnType::Handle => DataType::UInt64,
                ColumnType::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            };
            Field::new(*name, data, true)
        };
        let schema = Arc::new(Schema::new(names.iter().zip(&kinds).map(field).collect::<Vec<_>>()));
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_key_value_metadata(Some(metadata(recording)));
        for name in names.into_iter().filter(|name| is_increasing(name)) {
            properties = properties
                .set_column_dictionary_enabled(name.into(), false)
                .set_column_encoding(name.into(), Encoding::DELTA_BINARY_PACKED);
        }
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties.build())).map_err(output_error)?;
        Ok(Self { writer, schema, columns: kinds.into_iter().map(ColumnValues::new).collect(), pending_rows: 0 })
    }

    fn write_batch(&mut self) -> Result<(), ExportError> {
        let columns = self.columns.iter_mut().map(ColumnValues::take).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| arrow_error(&error))?;
        self.pending_rows = 0;
        self.writer.write(&batch).map_err(output_error)?;
        if self.writer.in_progress_size() > ROW_GROUP_BYTES {
            self.writer.flush().map_err(output_error)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), ExportError> {
        self.write_batch()?;
        self.writer.close().map(drop).map_err(output_error)
    }
}

impl<W: Write + Send> TableWriter for ParquetTable<W> {
    fn write_row(&mut self, cells: &[Cell<'_>]) -> Result<(), ExportError> {
        for ((values, cell), column) in self.columns.iter_mut().zip(cells).zip(self.schema.fields()) {
            values.push(*cell, column)?;
        }
        self.pending_rows += 1;
        if self.pending_rows == BATCH_ROWS { self.write_batch() } else { Ok(()) }
    }
}

/// Returns true for columns of event numbers and times, which increase from row to row and rarely
/// repeat.
fn is_increasing(column: &str) -> bool {
    column.ends_with("event") || column.ends_with("_ns")
}

/// Returns facts about the recording, such as the time that time 0 corresponds to.
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

/// Extracts the error of the output.
fn output_error(error: ParquetError) -> ExportError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => ExportError::Output(*error),
            Err(error) => ExportError::Output(std::io::Error::other(error)),
        },
        error => ExportError::Output(std::io::Error::other(error)),
    }
}

fn arrow_error(error: &ArrowError) -> ExportError {
    ExportError::Unsupported(error.to_string())
}
