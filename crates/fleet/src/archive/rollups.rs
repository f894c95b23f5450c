//! Combines the summaries of all processes into roll-ups: one row for each process and second.
//!
//! Summaries arrive in the order in which the broker stored them, so a second is complete once
//! summaries of a later one arrive.

use std::collections::BTreeMap;

use parquet::data_type::ByteArray;
use vramscope_insight::fleet::{Arrival, DeviceSummary, ProcessDescription, SequenceWindow, Summary};

use super::layout::Table;
use super::parquet_table::ColumnKind::{Integer, Text, Time};
use super::parquet_table::{Cell, ColumnKind};

/// How long the rows of a second wait for delayed summaries after the second has passed, in
/// seconds.
const GRACE_SECONDS: u64 = 2;
/// Age of a summary, in seconds, from which on it shows that the broker's clock was set back.
const CLOCK_STEP_SECONDS: u64 = 60;
/// Maximum number of processes whose summaries are combined, as in the fleet view; summaries of
/// further processes are ignored.
const MAX_PROCESSES: usize = 16_384;
/// Time without summaries, in seconds, after which a process may be forgotten if there are too
/// many.
const MAX_SILENCE_SECONDS: u64 = 600;
/// Maximum number of incomplete seconds; then the oldest is completed. Only a clock that was set
/// ahead leads to so many.
const MAX_OPEN_SECONDS: usize = 64;
/// Maximum number of site names that are kept for one process.
const MAX_NAMES: usize = 4096;

/// The columns of the table of roll-ups.
pub(crate) const ROLLUP_COLUMNS: [(&str, ColumnKind); 31] = [
    ("time", Time),
    ("rank", Integer),
    ("host", Text),
    ("pp", Integer),
    ("dp", Integer),
    ("tp", Integer),
    ("step", Integer),
    ("mark", Text),
    ("allocated_min", Integer),
    ("allocated_max", Integer),
    ("allocated_last", Integer),
    ("reserved_min", Integer),
    ("reserved_max", Integer),
    ("reserved_last", Integer),
    ("active_min", Integer),
    ("active_max", Integer),
    ("active_last", Integer),
    ("requested_min", Integer),
    ("requested_max", Integer),
    ("requested_last", Integer),
    ("free", Integer),
    ("largest_free", Integer),
    ("segments", Integer),
    ("blocks", Integer),
    ("ooms", Integer),
    ("events", Integer),
    ("lost_events", Integer),
    ("summaries", Integer),
    ("lost_summaries", Integer),
    ("lag_ms", Integer),
    ("identity", Text),
];

/// The columns of the table of sites.
const SITE_COLUMNS: [(&str, ColumnKind); 4] = [("time", Time), ("rank", Integer), ("site", Text), ("bytes", Integer)];

impl Table {
    /// Returns the names and kinds of the table's columns.
    #[must_use]
    pub fn columns(self) -> &'static [(&'static str, ColumnKind)] {
        match self {
            Self::Rollups => &ROLLUP_COLUMNS,
            Self::Sites => &SITE_COLUMNS,
        }
    }
}

/// Minimum, maximum and last value of a counter within one second.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    least: u64,
    most: u64,
    last: u64,
}

/// The combined summaries of a process within one second.
#[derive(Clone, Debug, Default)]
struct Row {
    description: ProcessDescription,
    counters: [Range; 4],
    newest: DeviceSummary,
    step: Option<u64>,
    mark: String,
    events: u64,
    lost_events: u64,
    summaries: u64,
    lost_summaries: u64,
    lag_ms: u64,
    /// The most bytes of each site, by name.
    sites: BTreeMap<String, u64>,
}

/// State of a process that is kept from one second to the next.
#[derive(Debug)]
struct KnownProcess {
    /// The numbers of its newest summaries, by which repeated and missing ones are recognized.
    numbers: SequenceWindow,
    /// When the newest summary was stored, in seconds since 1970.
    newest_second: u64,
    names: BTreeMap<u32, String>,
}

/// The rows of a complete second for both tables, in order of rank.
#[derive(Debug, Default)]
pub(crate) struct SecondRows {
    pub(crate) unix_ms: u64,
    pub(crate) rollups: Vec<Vec<Cell>>,
    pub(crate) sites: Vec<Vec<Cell>>,
}

/// Combines summaries into the rows of seconds.
#[derive(Debug, Default)]
pub(crate) struct RollupBuilder {
    /// The rows of each second that is not complete, by rank and identity.
    seconds: BTreeMap<u64, BTreeMap<(Option<u32>, String), Row>>,
    processes: BTreeMap<String, KnownProcess>,
    /// The last complete second, since 1970. All seconds before it are complete, too.
    complete: u64,
    /// The second in which an earlier server archived its last row.
    continued_second: Option<u64>,
    /// True if earlier summaries of a process that is unknown now may already be in the archive: an
    /// earlier server archived them, or the process was forgotten.
    has_earlier: bool,
    /// Number of ignored summaries: they arrived after their second was complete, or there were too
    /// many processes.
    pub(crate) ignored: u64,
}

impl RollupBuilder {
    /// Creates a builder that begins after the second `complete`, which an earlier server has
    /// archived. Further summaries of that second count for the next one.
    pub(crate) fn new(complete: u64) -> Self {
        let continued_second = (complete > 0).then_some(complete);
        Self { complete, continued_second, has_earlier: complete > 0, ..Self::default() }
    }

    /// Adds a summary that the broker stored at `stored_ns`, in nanoseconds since 1970. Returns the
    /// rows of the seconds that are now complete. Ignores a repeated summary.
    pub(crate) fn add(
        &mut self,
        identity: &str,
        description: &ProcessDescription,
        summary: &Summary,
        stored_ns: u64,
    ) -> Vec<SecondRows> {
        let mut second = stored_ns / 1_000_000_000;
        // The row of that second is already archived, so the summary counts for the next one.
        if self.continued_second == Some(second) {
            second += 1;
        }
        let Some(arrival) = self.register(identity, summary, second) else { return Vec::new() };
        let mut finished = Vec::new();
        if second + CLOCK_STEP_SECONDS < self.complete {
            finished = self.finish();
            self.complete = second.saturating_sub(1);
        }
        let key = (description.rank, identity.to_owned());
        let names = self.processes.get(identity).map(|process| &process.names);
        let row = match arrival {
            Arrival::Newest { .. } if second <= self.complete => None,
            Arrival::Newest { .. } => Some(self.seconds.entry(second).or_default().entry(key).or_default()),
            // The summary belongs to the second in which it was counted as missing.
            Arrival::Late | Arrival::Repeated => {
                let mut rows = self.seconds.values_mut().rev().filter_map(|rows| rows.get_mut(&key));
                rows.find(|row| row.lost_summaries > 0)
            }
        };
        let Some(row) = row else {
            self.ignored += 1;
            return finished;
        };
        let total = summary.total();
        row.extend(&total, summary, stored_ns, names);
        match arrival {
            Arrival::Newest { missing } => {
                row.lost_summaries += missing;
                row.set_newest(total, description, summary);
            }
            Arrival::Late | Arrival::Repeated => row.lost_summaries -= 1,
        }
        finished.extend(self.take_until(second.saturating_sub(GRACE_SECONDS)));
        finished
    }

    /// Stores the number and the names of a summary of the second `second`. Returns `None` if the
    /// summary is a repeated one, or there are too many processes.
    fn register(&mut self, identity: &str, summary: &Summary, second: u64) -> Option<Arrival> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(identity) {
            let oldest = second.saturating_sub(MAX_SILENCE_SECONDS);
            self.processes.retain(|_, process| process.newest_second >= oldest);
            self.has_earlier = true;
            if self.processes.len() >= MAX_PROCESSES {
                self.ignored += 1;
                return None;
            }
        }
        let first = if self.has_earlier { summary.number } else { 0 };
        let process = self.processes.entry(identity.to_owned()).or_insert_with(|| KnownProcess {
            numbers: SequenceWindow::new(first),
            newest_second: second,
            names: BTreeMap::new(),
        });
        let arrival = process.numbers.add(summary.number);
        if arrival == Arrival::Repeated {
            return None;
        }
        process.newest_second = second;
        for (number, name) in &summary.names {
            if process.names.len() < MAX_NAMES || process.names.contains_key(number) {
                process.names.insert(*number, name.clone());
            }
        }
        Some(arrival)
    }

    /// Completes all seconds and returns their rows.
    pub(crate) fn finish(&mut self) -> Vec<SecondRows> {
        self.take_until(u64::MAX)
    }

    /// Completes the seconds before `end` and returns their rows.
    fn take_until(&mut self, end: u64) -> Vec<SecondRows> {
        let mut complete = Vec::new();
        loop {
            let is_many = self.seconds.len() > MAX_OPEN_SECONDS;
            let Some(entry) = self.seconds.first_entry().filter(|entry| is_many || *entry.key() < end) else { break };
            let (second, rows) = entry.remove_entry();
            self.complete = second;
            complete.push(second_rows(second, rows));
        }
        complete
    }
}

impl Row {
    /// Counts a summary, and updates the second's minima and maxima of counters, sites and lag.
    fn extend(
        &mut self,
        total: &DeviceSummary,
        summary: &Summary,
        stored_ns: u64,
        names: Option<&BTreeMap<u32, String>>,
    ) {
        for (range, value) in self.counters.iter_mut().zip(counters(total)) {
            let is_first = self.summaries == 0;
            range.least = if is_first { value } else { range.least.min(value) };
            range.most = range.most.max(value);
        }
        for (site, bytes) in summary.devices.iter().flat_map(|device| &device.sites) {
            let name = names.and_then(|names| names.get(site)).cloned().unwrap_or_else(|| format!("site {site}"));
            let most = self.sites.entry(name).or_default();
            *most = (*most).max(*bytes);
        }
        self.summaries += 1;
        self.lag_ms = self.lag_ms.max(stored_ns.saturating_sub(summary.time_unix_ns) / 1_000_000);
    }

    /// Replaces the values that the row has of the newest summary.
    fn set_newest(&mut self, total: DeviceSummary, description: &ProcessDescription, summary: &Summary) {
        for (range, value) in self.counters.iter_mut().zip(counters(&total)) {
            range.last = value;
        }
        self.description.clone_from(description);
        self.newest = total;
        self.step = summary.step;
        self.mark.clone_from(&summary.mark);
        (self.events, self.lost_events) = (summary.events, summary.lost_events);
    }
}

/// Returns the counters whose minimum, maximum and last value are kept, in the order of the
/// columns.
fn counters(total: &DeviceSummary) -> [u64; 4] {
    [total.allocated, total.reserved, total.active, total.requested]
}

/// Returns the rows of both tables for a second, in order of rank.
fn second_rows(second: u64, rows: BTreeMap<(Option<u32>, String), Row>) -> SecondRows {
    let unix_ms = second.saturating_mul(1000);
    let mut complete = SecondRows { unix_ms, ..SecondRows::default() };
    for ((rank, identity), row) in rows {
        let rank = rank.map(u64::from);
        complete.rollups.push(rollup_cells(unix_ms, rank, &identity, &row));
        for (site, bytes) in &row.sites {
            complete.sites.push(vec![
                Cell::Integer(Some(unix_ms)),
                Cell::Integer(rank),
                Cell::Text(ByteArray::from(site.as_str())),
                Cell::Integer(Some(*bytes)),
            ]);
        }
    }
    complete
}

/// Returns the cells of a row in the order of [`ROLLUP_COLUMNS`].
fn rollup_cells(unix_ms: u64, rank: Option<u64>, identity: &str, row: &Row) -> Vec<Cell> {
    let text = |text: &str| Cell::Text(ByteArray::from(text));
    let count = |count: u64| Cell::Integer(Some(count));
    let coordinates = row.description.coordinates.as_ref();
    let place =
        |dimension| Cell::Integer(coordinates.and_then(|coordinates| coordinates.get(dimension)).map(u64::from));
    let mut cells = vec![count(unix_ms), Cell::Integer(rank), text(&row.description.host)];
    cells.extend([place("pp"), place("dp"), place("tp"), Cell::Integer(row.step), text(&row.mark)]);
    for range in &row.counters {
        cells.extend([range.least, range.most, range.last].map(count));
    }
    let newest = &row.newest;
    cells.extend([newest.free, newest.largest_free].map(count));
    cells.extend([newest.segments, newest.blocks, newest.ooms].map(|number| count(u64::from(number))));
    cells.extend([row.events, row.lost_events, row.summaries, row.lost_summaries, row.lag_ms].map(count));
    cells.push(text(identity));
    cells
}
