//! A table of an archive: Parquet files with equal columns, each for a later time than the one
//! before.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use vramscope_fleet::archive::{ArchiveReader, ColumnKind, Table, TablePartEntry};

use crate::checked_source::CheckedSource;
use crate::error::ObjectError;
use crate::object_reader::{ObjectReaders, ReadCounters, SharedReaders};

/// Address of the object store that DataFusion is given. That store is empty: [`ObjectReaders`]
/// read the archive's objects.
pub(crate) const STORE_URL: &str = "archive://run";
/// Name of the column whose range of times the manifest lists for each part.
const TIME: &str = "time";

/// Returns the type of a time: milliseconds since 1970, UTC.
pub(crate) fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

/// Returns the columns of a table; columns of text have the type `text`.
fn schema_of(table: Table, text: &DataType) -> SchemaRef {
    let field = |&(name, kind): &(&str, ColumnKind)| {
        let data_type = match kind {
            ColumnKind::Time => time_type(),
            ColumnKind::Integer => DataType::Int64,
            ColumnKind::Text => text.clone(),
        };
        Field::new(name, data_type, true)
    };
    Arc::new(Schema::new(table.columns().iter().map(field).collect::<Vec<_>>()))
}

/// A table of an archive.
pub(crate) struct ArchivedTable {
    table: Table,
    schema: SchemaRef,
    files: Vec<PartitionedFile>,
    readers: Arc<ObjectReaders>,
}

impl fmt::Debug for ArchivedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchivedTable").field("table", &self.table).finish_non_exhaustive()
    }
}

impl ArchivedTable {
    /// Creates a table of the parts that the manifest lists. Reads nothing.
    pub(crate) fn new(archive: &Arc<ArchiveReader>, table: Table, counters: &Arc<ReadCounters>) -> Self {
        let parts = archive.table_parts(table);
        // Views of texts share the bytes of a page's dictionary: a long text that many rows have
        // is in memory once.
        let schema = schema_of(table, &DataType::Utf8View);
        let file_schema = schema_of(table, &DataType::Utf8);
        let files = parts.iter().map(|part| file(part, &schema, &file_schema)).collect();
        let readers = ObjectReaders::new(Arc::clone(archive), parts, file_schema, Arc::clone(counters));
        Self { table, schema, files, readers: Arc::new(readers) }
    }
}

/// Returns the file of a part with its range of times, by which DataFusion can skip it.
fn file(part: &TablePartEntry, schema: &SchemaRef, file_schema: &SchemaRef) -> PartitionedFile {
    let time = |unix_ms: u64| {
        let unix_ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
        Precision::Exact(ScalarValue::TimestampMillisecond(Some(unix_ms), Some("UTC".into())))
    };
    let mut statistics = Statistics::new_unknown(schema);
    if let Ok(index) = schema.index_of(TIME) {
        statistics.column_statistics[index] = ColumnStatistics {
            min_value: time(part.object.start_unix_ms),
            max_value: time(part.object.end_unix_ms),
            ..ColumnStatistics::new_unknown()
        };
    }
    statistics.num_rows = Precision::Inexact(usize::try_from(part.rows).unwrap_or(usize::MAX));
    // The schema replaces the one that a file may have in its metadata.
    PartitionedFile::new(part.object.name.clone(), part.object.bytes)
        .with_statistics(Arc::new(statistics))
        .with_arrow_schema(Arc::clone(file_schema))
}

#[async_trait]
impl TableProvider for ArchivedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.files.is_empty() {
            return Err(ObjectError(format!("the archive has no parts of the table {} yet", self.table.name())).into());
        }
        // Without page indexes and Bloom filters: the sizes in them would need checks, too, and
        // row groups of half a minute are small enough to be read as a whole.
        let source = ParquetSource::new(Arc::clone(&self.schema))
            .with_parquet_file_reader_factory(Arc::new(SharedReaders(Arc::clone(&self.readers))))
            .with_enable_page_index(false)
            .with_bloom_filter_on_read(false);
        let source = CheckedSource::wrap(Arc::new(source));
        let groups = session.config().target_partitions().min(self.files.len()).max(1);
        let groups = self.files.chunks(self.files.len().div_ceil(groups)).map(|files| FileGroup::new(files.to_vec()));
        let config = FileScanConfigBuilder::new(ObjectStoreUrl::parse(STORE_URL)?, source)
            .with_file_groups(groups.collect())
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}
