//! The table of processes whose recordings an archive has, from its manifest.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringViewArray, TimestampMillisecondArray};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use vramscope_fleet::archive::{ArchiveReader, RankEntry, RecordingPartEntry};

/// Returns the table `ranks`: one row for each process.
pub(crate) fn ranks_table(archive: &ArchiveReader) -> Result<MemTable> {
    let ranks = archive.ranks();
    let texts =
        |of: fn(&RankEntry) -> &str| -> ArrayRef { Arc::new(StringViewArray::from_iter_values(ranks.iter().map(of))) };
    let integers = |of: fn(&RankEntry) -> Option<u64>| -> ArrayRef {
        Arc::new(ranks.iter().map(|rank| of(rank).map(saturate)).collect::<Int64Array>())
    };
    let times = |of: fn(&RankEntry) -> Option<u64>| -> ArrayRef {
        let times = ranks.iter().map(|rank| of(rank).map(saturate)).collect::<TimestampMillisecondArray>();
        Arc::new(times.with_timezone("UTC"))
    };
    let columns: [(&str, ArrayRef); 9] = [
        ("rank", integers(|rank| rank.rank.map(u64::from))),
        ("host", texts(|rank| &rank.host)),
        ("identity", texts(|rank| &rank.identity)),
        ("program", texts(|rank| &rank.program)),
        ("parts", integers(|rank| Some(rank.parts.len() as u64))),
        ("events", integers(|rank| Some(sum(&rank.parts, |part| part.events)))),
        ("lost_events", integers(|rank| Some(sum(&rank.parts, |part| part.lost_events)))),
        ("start_time", times(|rank| rank.parts.iter().map(|part| part.object.start_unix_ms).min())),
        ("end_time", times(|rank| rank.parts.iter().map(|part| part.object.end_unix_ms).max())),
    ];
    let fields = columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|(_, array)| array).collect())?;
    MemTable::try_new(schema, vec![vec![batch]])
}

/// Returns a number as an SQL integer; a number above `i64::MAX` becomes `i64::MAX`.
fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the sum of a value over all parts.
fn sum(parts: &[RecordingPartEntry], of: fn(&RecordingPartEntry) -> u64) -> u64 {
    parts.iter().map(of).fold(0, u64::saturating_add)
}
