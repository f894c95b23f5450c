//! The tool that measures memory and time by operation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::time::Instant;

use serde::Serialize;
use vramscope_trace::{Count, DurationNs};

use super::text_table::{TextTable, change_text, difference};
use super::timing::{Timing, nanoseconds};
use crate::device::Device;
use crate::operation::{MemoryChange, MemoryChangeKind, Observation, OperationObserver};

/// Name of the row for changes of memory outside of operations.
const OUTSIDE: &str = "(outside of operations)";

/// A tool that measures the memory and time of operations, like `torch.profiler` with
/// `profile_memory=True`.
pub struct Profiler {
    operations: Rc<OperationMeter>,
    _observation: Observation,
}

impl Profiler {
    /// Begins to measure operations on `device`.
    #[must_use]
    pub fn new(device: &Device, timing: Timing) -> Self {
        let outside = ProfileRow { name: OUTSIDE.to_owned(), ..ProfileRow::default() };
        let state = ProfilerState { rows: vec![outside], ..ProfilerState::default() };
        let start = Counters::of(device);
        let operations = Rc::new(OperationMeter { device: device.clone(), timing, start, state: RefCell::new(state) });
        Self { _observation: Observation::start(operations.clone()), operations }
    }

    /// Returns the table so far, sorted by `sort`. Calls and times exclude operations that have not
    /// ended.
    #[must_use]
    pub fn report(&self, sort: SortBy) -> ProfileReport {
        let OperationMeter { device, start, state, .. } = &*self.operations;
        let mut rows = state.borrow().rows.clone();
        rows.sort_by(|a, b| sort.key(b).cmp(&sort.key(a)).then_with(|| a.name.cmp(&b.name)));
        let now = Counters::of(device);
        ProfileReport {
            rows,
            pool_requested_bytes: difference(now.requested, start.requested),
            pool_allocated_bytes: difference(now.allocated, start.allocated),
        }
    }
}

/// The column by which a [`ProfileReport`] is sorted, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Own allocated bytes.
    #[default]
    OwnBytes,
    /// Total allocated bytes.
    TotalBytes,
    /// Own time.
    OwnTime,
    /// Total time.
    TotalTime,
    /// Number of calls.
    Calls,
}

impl SortBy {
    /// Returns the value of this column in a row.
    fn key(self, row: &ProfileRow) -> i64 {
        let unsigned = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        match self {
            Self::OwnBytes => row.own_allocated_bytes,
            Self::TotalBytes => row.total_allocated_bytes,
            Self::OwnTime => unsigned(row.own_ns),
            Self::TotalTime => unsigned(row.total_ns),
            Self::Calls => unsigned(row.calls),
        }
    }
}

/// The allocator's counters of requested and allocated bytes.
#[derive(Clone, Copy, Debug)]
struct Counters {
    requested: u64,
    allocated: u64,
}

impl Counters {
    fn of(device: &Device) -> Self {
        let stats = device.stats();
        Self { requested: stats.requested_bytes.all.current, allocated: stats.allocated_bytes.all.current }
    }
}

/// An observer that assigns memory and time to operations, for a [`Profiler`].
struct OperationMeter {
    device: Device,
    timing: Timing,
    start: Counters,
    state: RefCell<ProfilerState>,
}

/// The table of operations so far, and the open operations.
#[derive(Default)]
struct ProfilerState {
    /// One row for each operation. The first row is [`OUTSIDE`].
    rows: Vec<ProfileRow>,
    /// Index of each operation's row by its name.
    index: HashMap<String, usize>,
    /// The open operations, the innermost last.
    open: Vec<OpenOperation>,
}

/// An operation that has begun and not ended.
struct OpenOperation {
    /// Index of the operation's row.
    row: usize,
    /// False inside another operation of this name, whose totals already include this one.
    is_outermost: bool,
    start: Instant,
    /// Nanoseconds of the operations nested in it that have ended.
    nested_ns: u64,
}

impl ProfilerState {
    /// Adds a change of requested and allocated bytes to the rows of the open operations.
    fn change(&mut self, requested: i64, allocated: i64) {
        let own = self.open.last().map_or(0, |open| open.row);
        self.rows[own].own_requested_bytes += requested;
        self.rows[own].own_allocated_bytes += allocated;
        let total = self.open.iter().filter(|open| open.is_outermost).map(|open| open.row);
        for row in total.chain(self.open.is_empty().then_some(0)) {
            self.rows[row].total_requested_bytes += requested;
            self.rows[row].total_allocated_bytes += allocated;
        }
    }
}

impl OperationObserver for OperationMeter {
    fn begin(&self, name: &str, _location: &'static Location<'static>) {
        let mut state = self.state.borrow_mut();
        let row = state.index.get(name).copied().unwrap_or_else(|| {
            let row = state.rows.len();
            state.rows.push(ProfileRow { name: name.to_owned(), ..ProfileRow::default() });
            state.index.insert(name.to_owned(), row);
            row
        });
        let is_outermost = state.open.iter().all(|open| open.row != row);
        let start = self.timing.now(&self.device);
        state.open.push(OpenOperation { row, is_outermost, start, nested_ns: 0 });
    }

    fn end(&self) {
        let now = self.timing.now(&self.device);
        let mut state = self.state.borrow_mut();
        // An operation that began before this profiler is not in `open`.
        let Some(OpenOperation { row, is_outermost, start, nested_ns }) = state.open.pop() else { return };
        let time = nanoseconds(start, now);
        if let Some(outer) = state.open.last_mut() {
            outer.nested_ns += time;
        }
        let row = &mut state.rows[row];
        row.calls += 1;
        row.own_ns += time.saturating_sub(nested_ns);
        row.total_ns += if is_outermost { time } else { 0 };
    }

    fn memory_changed(&self, change: &MemoryChange<'_>) {
        if change.device.is(&self.device) {
            let sign = if change.kind == MemoryChangeKind::Allocate { 1 } else { -1 };
            let requested = sign * i64::try_from(change.requested).unwrap_or(i64::MAX);
            let allocated = difference(change.allocated_after, change.allocated_before);
            self.state.borrow_mut().change(requested, allocated);
        }
    }
}

/// An operation in a [`ProfileReport`]. Bytes are allocated minus freed bytes, over all calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProfileRow {
    /// The operation, such as `matmul` or `matmul_backward`.
    pub name: String,
    /// Number of calls that have ended.
    pub calls: u64,
    /// Requested bytes (before rounding), without nested operations.
    pub own_requested_bytes: i64,
    /// Requested bytes (before rounding), with nested operations.
    pub total_requested_bytes: i64,
    /// Bytes of blocks (after rounding), without nested operations.
    pub own_allocated_bytes: i64,
    /// Bytes of blocks (after rounding), with nested operations.
    pub total_allocated_bytes: i64,
    /// Nanoseconds, without nested operations.
    pub own_ns: u64,
    /// Nanoseconds, with nested operations.
    pub total_ns: u64,
}

/// The measurements of a [`Profiler`], with a row for each operation. `Display` formats them as a
/// table.
///
/// The own bytes of all rows add up to the changes of the allocator's counters, if all memory was
/// allocated and freed for tensors. The counter of requested bytes lags behind if a free waits for
/// the work of another stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProfileReport {
    /// The operations, and a row for the changes outside of operations.
    pub rows: Vec<ProfileRow>,
    /// Change of the allocator's requested bytes since the profiler was created.
    pub pool_requested_bytes: i64,
    /// Change of the allocator's allocated bytes since the profiler was created.
    pub pool_allocated_bytes: i64,
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["calls", "own bytes", "total bytes", "own time", "total time", "time per call", "operation"];
        let mut table = TextTable::new(&headings, 1);
        for row in &self.rows {
            table.add([
                Count(row.calls).to_string(),
                change_text(row.own_allocated_bytes),
                change_text(row.total_allocated_bytes),
                DurationNs(row.own_ns).to_string(),
                DurationNs(row.total_ns).to_string(),
                DurationNs(row.total_ns / row.calls.max(1)).to_string(),
                row.name.clone(),
            ]);
        }
        table.fmt(f)?;
        let own: i64 = self.rows.iter().map(|row| row.own_allocated_bytes).sum();
        write!(f, "{} by operations", change_text(own))?;
        writeln!(f, ", {} by the allocator's counter", change_text(self.pool_allocated_bytes))
    }
}
