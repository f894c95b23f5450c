//! Writes a recording as two Parquet tables, with the parquet crate's column writers.
//!
//! Rows are collected in row groups of bounded size. Texts are dictionary encoded: a row group
//! stores a site's stack once. The crate's Arrow writer would collect rows itself, but compiling
//! the arrow crates took a fifth of the time of a release build.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use vramscope_trace::Recording;

use super::error::{ExportError, Progress, Result};
use super::table::{Cell, ColumnType, TableWriter, event_columns, lifetime_columns, write_tables};

/// Maximum number of rows of a Parquet row group. Readers give each of their threads at least one
/// row group.
const ROW_GROUP_ROWS: usize = 128 << 10;
/// Bytes of distinct texts in all columns after which a Parquet row group ends before it has
/// [`ROW_GROUP_ROWS`] rows, because texts may make rows long.
const ROW_GROUP_TEXT_BYTES: usize = 64 << 20;
/// Number of texts that are passed to a Parquet column writer at once.
const TEXTS_PER_WRITE: usize = 8 << 10;

/// Writes a recording as two Parquet tables: its events, and the lifetimes of its allocations.
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

/// The collected values of one column of the Parquet row group that is being filled.
struct Column {
    name: &'static str,
    values: ColumnValues,
    /// For each row 1 if it has a value and 0 if the value is null: Parquet's definition levels.
    levels: Vec<i16>,
}

/// The values of a Parquet column, by type, for the rows that are not null.
enum ColumnValues {
    /// Numbers below 2⁶³.
    Signed(Vec<i64>),
    /// Numbers of 64 bits, stored by Parquet as the `i64` with equal bits.
    Unsigned(Vec<i64>),
    Text(Texts),
}

/// The collected texts of a Parquet column; rows with equal texts share one copy.
#[derive(Default)]
struct Texts {
    distinct: Vec<ByteArray>,
    /// The index in `distinct` of each text.
    indices: HashMap<Box<str>, usize>,
    /// The index in `distinct` of each row's text.
    rows: Vec<usize>,
}

impl Texts {
    /// Appends the text of the next row that has one; a text that equals an earlier one is shared.
    /// Returns the bytes that the distinct texts grew by.
    fn push(&mut self, text: &str) -> usize {
        if let Some(&index) = self.indices.get(text) {
            self.rows.push(index);
            return 0;
        }
        let index = self.distinct.len();
        self.distinct.push(ByteArray::from(text));
        self.indices.insert(text.into(), index);
        self.rows.push(index);
        text.len()
    }
}

impl Column {
    fn new((name, kind): (&'static str, ColumnType)) -> Self {
        let values = match kind {
            ColumnType::Integer => ColumnValues::Signed(Vec::new()),
            ColumnType::Address | ColumnType::Handle => ColumnValues::Unsigned(Vec::new()),
            ColumnType::Text => ColumnValues::Text(Texts::default()),
        };
        Self { name, values, levels: Vec::new() }
    }

    /// Returns the column's type in the file: `INT64`, `UINT_64` or `STRING`, each nullable.
    fn schema(&self) -> Result<Type, ParquetError> {
        let (physical, logical) = match self.values {
            ColumnValues::Signed(_) => (PhysicalType::INT64, None),
            ColumnValues::Unsigned(_) => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
            ColumnValues::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        };
        Type::primitive_type_builder(self.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()
    }

    /// Appends the value of the next row, and returns the bytes that the column's distinct texts
    /// grew by. Fails for a number of 2⁶³ or more in a column of signed integers.
    fn push(&mut self, cell: Cell<'_>) -> Result<usize> {
        let mut added_bytes = 0;
        let is_present = match (&mut self.values, cell) {
            (ColumnValues::Signed(values), Cell::Integer(number)) => {
                let too_large = |number| {
                    ExportError::Unsupported(format!("{} is {number}; Parquet integers are below 2⁶³", self.name))
                };
                let number = number.map(|number| i64::try_from(number).map_err(|_| too_large(number))).transpose()?;
                values.extend(number);
                number.is_some()
            }
            (ColumnValues::Unsigned(values), Cell::Integer(number) | Cell::Address(number)) => {
                values.extend(number.map(u64::cast_signed));
                number.is_some()
            }
            (ColumnValues::Text(texts), Cell::Text(text)) => {
                added_bytes = text.map_or(0, |text| texts.push(text));
                text.is_some()
            }
            _ => unreachable!("the type of a cell is the type of its column"),
        };
        self.levels.push(i16::from(is_present));
        Ok(added_bytes)
    }

    /// Writes the collected values as the row group's next column, and removes them.
    fn write(&mut self, mut writer: SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = std::mem::take(&mut self.levels);
        match &mut self.values {
            ColumnValues::Signed(values) | ColumnValues::Unsigned(values) => {
                writer.typed::<Int64Type>().write_batch(values, Some(&levels), None)?;
                values.clear();
            }
            ColumnValues::Text(texts) => {
                let texts = std::mem::take(texts);
                let writer = writer.typed::<ByteArrayType>();
                let mut rows = texts.rows.iter();
                for levels in levels.chunks(TEXTS_PER_WRITE) {
                    let present = levels.iter().filter(|level| **level == 1).count();
                    let values: Vec<_> = rows.by_ref().take(present).map(|row| texts.distinct[*row].clone()).collect();
                    writer.write_batch(&values, Some(levels), None)?;
                }
            }
        }
        writer.close()
    }
}

/// A Parquet file that is being written: the table of events or of lifetimes.
struct ParquetTable<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// Number of rows of the current row group; `columns` has their values.
    pending_rows: usize,
    /// Bytes of the distinct texts in the rows that are not written yet.
    text_bytes: usize,
}

impl<W: Write + Send> ParquetTable<W> {
    fn new(recording: &Recording, out: W, columns: impl Iterator<Item = (&'static str, ColumnType)>) -> Result<Self> {
        let columns: Vec<_> = columns.map(Column::new).collect();
        let fields = columns.iter().map(|column| column.schema().map(Arc::new)).collect::<Result<_, _>>();
        let schema = Type::group_type_builder("schema").with_fields(fields.map_err(output_error)?).build();
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_key_value_metadata(Some(metadata(recording)));
        for column in columns.iter().filter(|column| is_increasing(column.name)) {
            properties = properties
                .set_column_dictionary_enabled(column.name.into(), false)
                .set_column_encoding(column.name.into(), Encoding::DELTA_BINARY_PACKED);
        }
        let schema = Arc::new(schema.map_err(output_error)?);
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties.build())).map_err(output_error)?;
        Ok(Self { writer, columns, pending_rows: 0, text_bytes: 0 })
    }

    /// Writes the collected rows as a row group.
    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        (self.pending_rows, self.text_bytes) = (0, 0);
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let writer = group.next_column()?.expect("the schema has this many columns");
            column.write(writer)?;
        }
        group.close().map(drop)
    }

    /// Writes the remaining rows and the end of the file. The file is unreadable if this is not
    /// called.
    fn finish(mut self) -> Result {
        if self.pending_rows > 0 {
            self.write_row_group().map_err(output_error)?;
        }
        self.writer.close().map(drop).map_err(output_error)
    }
}

impl<W: Write + Send> TableWriter for ParquetTable<W> {
    fn write_row(&mut self, cells: &[Cell<'_>]) -> Result {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            self.text_bytes += column.push(*cell)?;
        }
        self.pending_rows += 1;
        if self.pending_rows == ROW_GROUP_ROWS || self.text_bytes > ROW_GROUP_TEXT_BYTES {
            self.write_row_group().map_err(output_error)?;
        }
        Ok(())
    }
}

/// Returns true if the column with this name has event numbers or times, which increase from row to
/// row and are stored as differences; false for other columns.
fn is_increasing(column: &str) -> bool {
    column.ends_with("event") || column.ends_with("_ns")
}

/// Returns key-value pairs about the recording for the Parquet file: its time 0 in nanoseconds
/// since 1970, source, writer and allocator settings.
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

/// Converts an error of the Parquet library. An I/O error inside it becomes [`ExportError::Output`]
/// itself.
fn output_error(error: ParquetError) -> ExportError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => ExportError::Output(*error),
            Err(error) => ExportError::Output(std::io::Error::other(error)),
        },
        error => ExportError::Output(std::io::Error::other(error)),
    }
}
