//! The first pass over a log: facts that must be known before the first event.

use std::collections::HashSet;

use super::log::{Action, DAY_NS, LogReader, Row, Time, TimeUnwrapper};
use crate::error::ReadError;
use crate::limits::{LimitExceeded, MemoryBudget};
use crate::progress::Cancelled;

/// The alignment that RMM guarantees for every pointer, `rmm::CUDA_ALLOCATION_ALIGNMENT`.
const RMM_ALIGNMENT: u64 = 256;
/// Estimated memory for one live block, segment or thread of an RMM log, in bytes, with its share
/// of a hash table.
pub(super) const TABLE_ROW_BYTES: usize = 96;

/// Facts about a whole RMM log that must be known before its first line is converted: earliest
/// time, alignment of addresses, invalid lines, and whether all frees match an allocation.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Valid lines.
    rows: u64,
    /// Invalid lines.
    pub(super) bad_rows: u64,
    /// The error for the first invalid line.
    pub(super) first_bad: Option<ReadError>,
    /// True if the last line is invalid, as when the program was killed while it wrote.
    pub(super) ends_with_bad_row: bool,
    /// Time of the earliest line, in nanoseconds since 1970 or since midnight of the first day.
    pub(super) epoch_ns: i64,
    /// True if times are since 1970.
    pub(super) has_dates: bool,
    /// Number of times that the log's time passes midnight.
    pub(super) midnights: i64,
    /// A power of two that divides every pointer.
    pub(super) alignment: u64,
    /// True if every freed block was allocated in this log.
    pub(super) is_complete: bool,
}

impl Survey {
    /// Reads a whole log. After every `progress_lines` valid lines, `progress` receives the byte
    /// offset reached and the number of valid lines so far. Fails if `progress` does, and with the
    /// first invalid line if more lines are invalid than valid.
    pub(super) fn new(
        bytes: &[u8],
        budget: &mut MemoryBudget,
        progress_lines: u64,
        progress: &mut dyn FnMut(u64, u64) -> Result<(), Cancelled>,
    ) -> Result<Self, ReadError> {
        let mut survey = Self { epoch_ns: i64::MAX, alignment: RMM_ALIGNMENT, is_complete: true, ..Self::default() };
        let (mut reader, mut times, mut live) = (LogReader::new(bytes), TimeUnwrapper::default(), HashSet::new());
        while let Some(line) = reader.next()? {
            let row = match line.row {
                Ok(row) => row,
                Err(problem) => {
                    survey.bad_rows += 1;
                    survey.ends_with_bad_row = true;
                    survey.first_bad.get_or_insert_with(|| line.error(problem));
                    continue;
                }
            };
            survey.add(&row, &mut times, &mut live, budget).map_err(|error| line.error(error))?;
            if survey.rows.is_multiple_of(progress_lines) {
                progress(line.offset, survey.rows)?;
            }
        }
        budget.give_back(live.len() * TABLE_ROW_BYTES);
        match survey.first_bad {
            Some(bad) if survey.rows < survey.bad_rows => Err(bad),
            _ => Ok(survey),
        }
    }

    /// Adds a valid line to the facts. `live` holds the addresses of the blocks that are live after
    /// the lines so far, and is updated; its memory is subtracted from `budget`.
    fn add(
        &mut self,
        row: &Row,
        times: &mut TimeUnwrapper,
        live: &mut HashSet<u64>,
        budget: &mut MemoryBudget,
    ) -> Result<(), LimitExceeded> {
        self.rows += 1;
        self.ends_with_bad_row = false;
        self.has_dates |= matches!(row.time, Time::Unix(_));
        let ns = times.unwrap_ns(row.time);
        self.epoch_ns = self.epoch_ns.min(ns);
        if !self.has_dates {
            self.midnights = self.midnights.max(ns.div_euclid(DAY_NS));
        }
        if row.size == 0 || row.action == Action::AllocateFailed {
            return Ok(());
        }
        self.alignment = self.alignment.min(1 << row.address.trailing_zeros().min(63));
        if row.action == Action::Allocate {
            if live.insert(row.address) {
                budget.spend(TABLE_ROW_BYTES)?;
            }
        } else if live.remove(&row.address) {
            budget.give_back(TABLE_ROW_BYTES);
        } else {
            self.is_complete = false;
        }
        Ok(())
    }
}
