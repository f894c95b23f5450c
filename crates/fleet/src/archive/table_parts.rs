//! Writes the rows of complete seconds into the parts of a table.

use std::time::{Duration, Instant};

use parquet::errors::ParquetError;

use super::layout::Table;
use super::manifest::TablePartEntry;
use super::parquet_table::{Cell, ParquetTable};
use super::rollups::SecondRows;
use super::spool::Spool;
use super::uploads::Upload;

/// Maximum number of rows in a part of a table. An hour of 4,096 ranks has about 30 parts.
const MAX_ROWS: u64 = 4 * 122_880;

/// The part that is being written.
struct OpenPart {
    file: ParquetTable<Spool>,
    opened: Instant,
    /// The first and the last second, in milliseconds since 1970.
    times_unix_ms: (u64, u64),
}

/// A table whose rows are divided into parts.
pub(crate) struct TableParts {
    table: Table,
    /// Maximum time for which a part is open, and maximum time that its rows cover.
    duration: Duration,
    open: Option<OpenPart>,
    /// Number of parts that were lost because their temporary files could not be written.
    lost_parts: u64,
}

impl TableParts {
    /// Creates a table without parts.
    pub(crate) fn new(table: Table, duration: Duration) -> Self {
        Self { table, duration, open: None, lost_parts: 0 }
    }

    /// Returns how many parts were lost since the last call.
    pub(crate) fn take_lost_parts(&mut self) -> u64 {
        std::mem::take(&mut self.lost_parts)
    }

    /// Adds the rows of a second. Returns the part that this completes, if any: the part before the
    /// second, or one that ends with it.
    pub(crate) fn push(&mut self, second: &SecondRows) -> Option<Upload> {
        let rows = match self.table {
            Table::Rollups => &second.rollups,
            Table::Sites => &second.sites,
        };
        if rows.is_empty() {
            return None;
        }
        // Rows of a part are sorted by time, so another part begins after a clock was set back.
        let is_behind = self.open.as_ref().is_some_and(|open| second.unix_ms <= open.times_unix_ms.1);
        let before = if is_behind { self.finish() } else { None };
        if let Err(error) = self.write(second.unix_ms, rows) {
            tracing::warn!("lost a part of the archive: cannot write a temporary file: {error}");
            self.lost_parts += 1;
            self.open = None;
        }
        before.or_else(|| self.take_complete())
    }

    /// Writes the rows of a second to the open part; begins a part first if there is none.
    fn write(&mut self, unix_ms: u64, rows: &[Vec<Cell>]) -> Result<(), ParquetError> {
        if self.open.is_none() {
            let file = ParquetTable::new(Spool::new()?, self.table.columns())?;
            self.open = Some(OpenPart { file, opened: Instant::now(), times_unix_ms: (unix_ms, unix_ms) });
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.times_unix_ms.1 = unix_ms;
        rows.iter().try_for_each(|row| open.file.push(row.iter().cloned()))
    }

    /// Ends and returns the open part if it has [`MAX_ROWS`] rows, covers the maximum time, or has
    /// been open for the maximum time.
    pub(crate) fn take_complete(&mut self) -> Option<Upload> {
        let is_complete = self.open.as_ref().is_some_and(|open| {
            let (first, last) = open.times_unix_ms;
            open.file.rows() >= MAX_ROWS
                || u128::from(last - first) >= self.duration.as_millis()
                || open.opened.elapsed() >= self.duration
        });
        if is_complete { self.finish() } else { None }
    }

    /// Ends and returns the open part, if any.
    pub(crate) fn finish(&mut self) -> Option<Upload> {
        let OpenPart { file, times_unix_ms, .. } = self.open.take()?;
        let rows = file.rows();
        let object = file.finish().and_then(|spool| spool.finish().map_err(ParquetError::from));
        match object {
            Ok(object) => {
                let entry = TablePartEntry { object: object.entry(times_unix_ms), rows };
                Some(Upload::Table(self.table, object, entry))
            }
            Err(error) => {
                tracing::warn!("lost a part of the archive: cannot write a temporary file: {error}");
                self.lost_parts += 1;
                None
            }
        }
    }
}
