//! Reads the one-second roll-ups of an archive.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};

use super::rollups::ROLLUP_COLUMNS;

/// The totals of a process in one second; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// The second, in milliseconds since 1970 by the broker's clock.
    pub unix_ms: u64,
    /// The rank of the process; `None` if it has none.
    pub rank: Option<u32>,
    /// The identity of the process's recording.
    pub identity: String,
    /// The step of the training run; `None` if it is unknown.
    pub step: Option<u64>,
    /// Minimum, maximum and last value of the allocated bytes in this second.
    pub allocated: (u64, u64, u64),
    /// Minimum, maximum and last value of the reserved bytes in this second.
    pub reserved: (u64, u64, u64),
    /// Number of events that the process has recorded so far.
    pub events: u64,
    /// Number of summaries in this second.
    pub summaries: u64,
    /// Number of summaries that are missing before these.
    pub lost_summaries: u64,
}

/// Returns the rows of a table's part that `is_wanted` selects by their time (milliseconds since
/// 1970) and rank.
///
/// # Errors
/// If the bytes are no Parquet file with the columns of roll-ups.
pub(crate) fn read_rollups(part: Bytes, is_wanted: impl Fn(u64, Option<u32>) -> bool) -> Result<Vec<Rollup>, String> {
    // Panics are caught, because the parquet crate panics for some damaged files.
    let read = catch_unwind(AssertUnwindSafe(|| decode_rollups(part, is_wanted)));
    read.unwrap_or_else(|_| Err("it is damaged".to_owned()))
}

/// Decodes the wanted rows of a table's part. May panic for a damaged file.
fn decode_rollups(part: Bytes, is_wanted: impl Fn(u64, Option<u32>) -> bool) -> Result<Vec<Rollup>, String> {
    let file = SerializedFileReader::new(part).map_err(|error| error.to_string())?;
    let mut rollups = Vec::new();
    for row in RowIter::from_file_into(Box::new(file)) {
        let rollup = rollup(&row.map_err(|error| error.to_string())?)?;
        if is_wanted(rollup.unix_ms, rollup.rank) {
            rollups.push(rollup);
        }
    }
    Ok(rollups)
}

/// Converts a row of the Parquet file to a roll-up. Fails if a column is missing or has another
/// type.
fn rollup(row: &Row) -> Result<Rollup, String> {
    if !row.get_column_iter().map(|(name, _)| name.as_str()).eq(ROLLUP_COLUMNS.iter().map(|(name, _)| *name)) {
        return Err("its columns are not those of roll-ups".to_owned());
    }
    let field = |wanted: &str| row.get_column_iter().find(|(name, _)| *name == wanted).map(|(_, field)| field);
    let number = |name: &str| match field(name) {
        Some(Field::Long(number) | Field::TimestampMillis(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    let range = |[least, most, last]: [&str; 3]| {
        (number(least).unwrap_or(0), number(most).unwrap_or(0), number(last).unwrap_or(0))
    };
    let identity = match field("identity") {
        Some(Field::Str(identity)) => identity.clone(),
        _ => return Err("a row has no identity".to_owned()),
    };
    Ok(Rollup {
        unix_ms: number("time").ok_or("a row has no time")?,
        rank: number("rank").and_then(|rank| u32::try_from(rank).ok()),
        identity,
        step: number("step"),
        allocated: range(["allocated_min", "allocated_max", "allocated_last"]),
        reserved: range(["reserved_min", "reserved_max", "reserved_last"]),
        events: number("events").unwrap_or(0),
        summaries: number("summaries").unwrap_or(0),
        lost_summaries: number("lost_summaries").unwrap_or(0),
    })
}
