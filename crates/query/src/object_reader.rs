//! Reads ranges of an archive's objects for DataFusion.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use vramscope_fleet::archive::{ArchiveReader, ArchivedPart, TablePartEntry};

use crate::error::ObjectError;
use crate::untrusted::{MAX_FOOTER_BYTES, check_footer, check_pages};

/// The magic number at the end of a Parquet file.
const MAGIC: &[u8] = b"PAR1";
/// Number of bytes of the footer's length and the magic number together.
const TAIL_BYTES: u64 = 8;
/// Number of bytes that are read first, at the end of a file: most footers fit.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// Maximum number of bytes between two ranges that are read by one request.
const MAX_GAP_BYTES: u64 = 256 << 10;
/// Maximum number of concurrent requests of one reader.
const MAX_REQUESTS: usize = 8;
/// Maximum number of footers that are kept; each takes some 100 KB of memory.
const MAX_KEPT_FOOTERS: usize = 512;

/// How much was read from the archive.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    /// The names of objects that were read.
    objects: Mutex<BTreeSet<String>>,
    bytes: AtomicU64,
}

impl ReadCounters {
    /// Returns the number of objects and bytes that were read since the last call.
    pub(crate) fn take(&self) -> (u64, u64) {
        let objects = std::mem::take(&mut *self.objects.lock().unwrap_or_else(PoisonError::into_inner));
        (objects.len() as u64, self.bytes.swap(0, Ordering::Relaxed))
    }

    /// Counts that `bytes` bytes of an object were read.
    fn add(&self, name: &str, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }
}

/// Makes readers of the parts of one table. No other object can be read.
pub(crate) struct ObjectReaders {
    archive: Arc<ArchiveReader>,
    /// The parts by name.
    parts: BTreeMap<String, TablePartEntry>,
    /// The columns that each part must have.
    schema: Arc<Schema>,
    footers: Mutex<BTreeMap<String, Arc<ParquetMetaData>>>,
    counters: Arc<ReadCounters>,
}

impl fmt::Debug for ObjectReaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectReaders").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

impl ObjectReaders {
    /// Creates readers of `parts`, which must have the columns of `schema`.
    pub(crate) fn new(
        archive: Arc<ArchiveReader>,
        parts: &[TablePartEntry],
        schema: Arc<Schema>,
        counters: Arc<ReadCounters>,
    ) -> Self {
        let parts = parts.iter().map(|part| (part.object.name.clone(), part.clone())).collect();
        Self { archive, parts, schema, footers: Mutex::default(), counters }
    }
}

/// [`ObjectReaders`] as DataFusion's factory of readers.
#[derive(Clone, Debug)]
pub(crate) struct SharedReaders(pub(crate) Arc<ObjectReaders>);

impl ParquetFileReaderFactory for SharedReaders {
    fn create_reader(
        &self,
        _partition_index: usize,
        file: PartitionedFile,
        _metadata_size_hint: Option<usize>,
        _metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let name = file.object_meta.location.as_ref();
        let entry = self.0.parts.get(name).ok_or_else(|| ObjectError::new(name, "the manifest does not list it"))?;
        let part = self.0.archive.table_part(entry);
        Ok(Box::new(ObjectReader { readers: Arc::clone(&self.0), entry: entry.clone(), part }))
    }
}

/// Reads one object.
struct ObjectReader {
    readers: Arc<ObjectReaders>,
    entry: TablePartEntry,
    part: ArchivedPart,
}

/// The result of a method that the parquet crate calls.
type ParquetResult<T> = std::result::Result<T, ParquetError>;

impl ObjectReader {
    /// Returns the name of the object.
    fn name(&self) -> &str {
        &self.entry.object.name
    }

    /// Returns the error that the object cannot be used for `reason`.
    fn refuse(&self, reason: impl fmt::Display) -> ParquetError {
        ObjectError::new(self.name(), reason).into()
    }

    /// Reads and counts a range of bytes.
    async fn read(&self, range: Range<u64>) -> ParquetResult<Bytes> {
        let bytes = self.part.read_range(range).await.map_err(ObjectError::from)?;
        self.readers.counters.add(self.name(), bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads pages of columns: each range begins with a page, and has only whole pages.
    async fn read_pages(&self, ranges: Vec<Range<u64>>) -> ParquetResult<Vec<Bytes>> {
        let requests = merge_ranges(&ranges);
        let read = stream::iter(requests.clone()).map(|range| self.read(range)).buffered(MAX_REQUESTS);
        let read: Vec<Bytes> = read.try_collect().await?;
        let find = |range: &Range<u64>| {
            let at = requests.partition_point(|request| request.start <= range.start).checked_sub(1)?;
            let start = usize::try_from(range.start - requests.get(at)?.start).ok()?;
            let end = start.checked_add(usize::try_from(range.end.checked_sub(range.start)?).ok()?)?;
            let bytes = read.get(at)?;
            (end <= bytes.len()).then(|| bytes.slice(start..end))
        };
        let mut found = Vec::new();
        for range in &ranges {
            let bytes = find(range).ok_or_else(|| self.refuse("it has impossible positions"))?;
            check_pages(&bytes).map_err(|reason| self.refuse(reason))?;
            found.push(bytes);
        }
        Ok(found)
    }

    /// Returns the footer, which is read once for each object.
    async fn footer(&self) -> ParquetResult<Arc<ParquetMetaData>> {
        let footers = &self.readers.footers;
        if let Some(footer) = footers.lock().unwrap_or_else(PoisonError::into_inner).get(self.name()) {
            return Ok(Arc::clone(footer));
        }
        let footer = Arc::new(self.read_footer().await?);
        let mut footers = footers.lock().unwrap_or_else(PoisonError::into_inner);
        if footers.len() >= MAX_KEPT_FOOTERS {
            footers.clear();
        }
        footers.insert(self.name().to_owned(), Arc::clone(&footer));
        Ok(footer)
    }

    /// Reads and checks the footer.
    async fn read_footer(&self) -> ParquetResult<ParquetMetaData> {
        let len = self.entry.object.bytes;
        let end = self.read(len.saturating_sub(FIRST_READ_BYTES)..len).await?;
        let tail = end.len().checked_sub(TAIL_BYTES as usize).and_then(|at| end.get(at..));
        let footer_bytes = tail
            .filter(|tail| tail.ends_with(MAGIC))
            .and_then(|tail| tail.first_chunk())
            .map(|bytes| u64::from(u32::from_le_bytes(*bytes)))
            .ok_or_else(|| self.refuse("it is not a Parquet file"))?;
        let start = len.checked_sub(footer_bytes + TAIL_BYTES).filter(|_| footer_bytes <= MAX_FOOTER_BYTES);
        let start = start.ok_or_else(|| self.refuse("its footer has an impossible length"))?;
        let footer = match end.len().checked_sub((len - start) as usize) {
            Some(at) => end.slice(at..end.len() - TAIL_BYTES as usize),
            None => self.read(start..len - TAIL_BYTES).await?,
        };
        check_footer(&footer).map_err(|reason| self.refuse(reason))?;
        let metadata = ParquetMetaDataReader::decode_metadata(&footer).map_err(|error| self.refuse(error))?;
        self.check_columns(&metadata)?;
        Ok(metadata)
    }

    /// Checks that an object has the table's columns, compressed as the archive's writer does.
    fn check_columns(&self, metadata: &ParquetMetaData) -> ParquetResult<()> {
        let schema = parquet_to_arrow_schema(metadata.file_metadata().schema_descr(), None);
        if schema.map_err(|error| self.refuse(error))?.fields() != self.readers.schema.fields() {
            return Err(self.refuse("its columns are not those of the table"));
        }
        let mut columns = metadata.row_groups().iter().flat_map(|group| group.columns());
        if !columns.all(|column| matches!(column.compression(), Compression::ZSTD(_) | Compression::UNCOMPRESSED)) {
            return Err(self.refuse("it is not compressed with Zstandard"));
        }
        Ok(())
    }
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        let read = async move { self.read_pages(vec![range]).await.map(|mut bytes| bytes.pop().unwrap_or_default()) };
        read.boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.read_pages(ranges).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        self.footer().boxed()
    }
}

/// Returns the ranges to request, which together contain all of `ranges`: in order, without
/// overlap, and with close ones joined.
fn merge_ranges(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.to_vec();
    sorted.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(MAX_GAP_BYTES) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn close_ranges_are_read_together() {
        assert_eq!(merge_ranges(&[]), []);
        assert_eq!(merge_ranges(&[10..20, 0..5]), [0..20]);
        assert_eq!(merge_ranges(&[0..100, 50..60]), [0..100]);
        let far = 200 + MAX_GAP_BYTES;
        assert_eq!(merge_ranges(&[0..100, far..far + 1]), [0..100, far..far + 1]);
        assert_eq!(merge_ranges(&[u64::MAX - 1..u64::MAX, 0..1]), [0..1, u64::MAX - 1..u64::MAX]);
    }
}
