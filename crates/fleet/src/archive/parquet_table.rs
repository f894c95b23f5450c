//! Writes a table as a Parquet file, one row group at a time.
//!
//! It uses the parquet crate's column writers, because the crate's writer for Arrow would need the
//! arrow crates.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

/// Number of rows in a row group. Readers skip whole row groups by their minimum and maximum of
/// time and rank.
pub(crate) const ROW_GROUP_ROWS: usize = 122_880;

/// The type of a column's values. Every value may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Milliseconds since 1970.
    Time,
    /// A number of at most 63 bits.
    Integer,
    /// A text.
    Text,
}

/// A value of a table: one row's value in one column.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    /// A number or a time; numbers above 2⁶³ − 1 are stored as 2⁶³ − 1.
    Integer(Option<u64>),
    /// A text.
    Text(ByteArray),
}

/// The values of a column that are not written yet.
#[derive(Debug, Default)]
struct Column {
    integers: Vec<i64>,
    texts: Vec<ByteArray>,
    /// For each row 1 if it has a value, else 0: Parquet's definition levels.
    levels: Vec<i16>,
}

/// A Parquet file that is being written. Rows come in the order of time and rank.
pub(crate) struct ParquetTable<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    rows: u64,
}

impl<W: Write + Send> ParquetTable<W> {
    /// Begins a file with these columns, of which the first two are the time and the rank.
    pub(crate) fn new(out: W, columns: &[(&str, ColumnKind)]) -> Result<Self, ParquetError> {
        let fields = columns.iter().map(|&(name, kind)| field(name, kind).map(Arc::new)).collect::<Result<_, _>>()?;
        let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
        let sorting = |column_idx| SortingColumn { column_idx, descending: false, nulls_first: true };
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_sorting_columns(Some(vec![sorting(0), sorting(1)]))
            .build();
        let writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
        Ok(Self { writer, columns: columns.iter().map(|_| Column::default()).collect(), rows: 0 })
    }

    /// Adds a row with one cell for each column.
    pub(crate) fn push(&mut self, cells: impl IntoIterator<Item = Cell>) -> Result<(), ParquetError> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            let is_present = match cell {
                Cell::Integer(number) => {
                    column.integers.extend(number.map(|number| i64::try_from(number).unwrap_or(i64::MAX)));
                    number.is_some()
                }
                Cell::Text(text) => {
                    column.texts.push(text);
                    true
                }
            };
            column.levels.push(i16::from(is_present));
        }
        self.rows += 1;
        if self.columns.first().is_some_and(|column| column.levels.len() >= ROW_GROUP_ROWS) {
            self.write_row_group()?;
        }
        Ok(())
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes the collected values of all columns as one row group.
    fn write_row_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            let Column { integers, texts, levels } = std::mem::take(column);
            let mut writer = group.next_column()?.expect("the schema has this many columns");
            match writer.untyped() {
                parquet::column::writer::ColumnWriter::ByteArrayColumnWriter(_) => {
                    writer.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None)?;
                }
                _ => {
                    writer.typed::<Int64Type>().write_batch(&integers, Some(&levels), None)?;
                }
            }
            writer.close()?;
        }
        group.close().map(drop)
    }

    /// Writes the remaining rows and the file's end, and returns the output.
    pub(crate) fn finish(mut self) -> Result<W, ParquetError> {
        if self.columns.first().is_some_and(|column| !column.levels.is_empty()) {
            self.write_row_group()?;
        }
        self.writer.into_inner()
    }
}

/// Returns the Parquet schema of a column.
fn field(name: &str, kind: ColumnKind) -> Result<Type, ParquetError> {
    let (physical, logical) = match kind {
        ColumnKind::Time => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
        ColumnKind::Integer => (PhysicalType::INT64, None),
        ColumnKind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()
}
