//! The tool that measures memory by source line.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::panic::Location;
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use vramscope_trace::{ByteSize, Count, shortened};

use super::text_table::{TextTable, change_text, difference};
use crate::device::Device;
use crate::operation::{MemoryChange, MemoryChangeKind, Observation, OperationObserver};

/// Maximum number of characters of a source line in the table as text.
const MAX_SOURCE_CHARACTERS: usize = 60;

/// A source line: its file and line number.
type Line = (&'static str, u32);

/// A tool that measures the memory that each source line of the program requests.
///
/// Bytes are allocated bytes of one device: the sizes of blocks after rounding. Memory that an
/// operation's backward pass requests counts for the line of the forward call.
pub struct LineTable {
    lines: Rc<LineObserver>,
    _observation: Observation,
}

impl LineTable {
    /// Creates a table of the memory of `device`, and begins to measure.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        let start_bytes = device.memory().allocated_bytes();
        let lines = Rc::new(LineObserver { device: device.clone(), start_bytes, state: RefCell::default() });
        Self { _observation: Observation::start(lines.clone()), lines }
    }

    /// Returns the table so far, in order of file and line. The texts of lines are read from their
    /// files, relative to the folder `sources`; they are empty if a file cannot be read.
    #[must_use]
    pub fn report(&self, sources: &Path) -> LineReport {
        let state = self.lines.state.borrow();
        let mut files: HashMap<&str, Vec<String>> = HashMap::new();
        let rows = state.rows.iter().map(|(&(file, line), row)| {
            let lines = files.entry(file).or_insert_with(|| {
                let text = fs::read_to_string(sources.join(file)).unwrap_or_default();
                text.lines().map(|line| line.trim().to_owned()).collect()
            });
            let source = lines.get((line as usize).saturating_sub(1)).cloned().unwrap_or_default();
            LineRow { file: file.to_owned(), line, source, ..row.clone() }
        });
        LineReport {
            rows: rows.collect(),
            start_bytes: self.lines.start_bytes,
            freed_older_bytes: state.freed_older,
            end_bytes: self.lines.device.memory().allocated_bytes(),
        }
    }
}

/// An observer that assigns operations and memory to source lines, for a [`LineTable`].
struct LineObserver {
    device: Device,
    start_bytes: u64,
    state: RefCell<LineTableState>,
}

/// The table of lines so far, the live blocks, and the open operations.
#[derive(Default)]
struct LineTableState {
    rows: BTreeMap<Line, LineRow>,
    /// Line and size of the live blocks by address.
    live: HashMap<u64, (Line, u64)>,
    /// Bytes of freed blocks that were allocated before the table was created.
    freed_older: u64,
    /// Number of open operations.
    depth: usize,
    /// Line of the outermost open operation, and the allocated bytes when it began.
    outermost: Option<(Line, u64)>,
}

/// Returns the file and line number of a location.
fn line_of(location: &'static Location<'static>) -> Line {
    (location.file(), location.line())
}

impl OperationObserver for LineObserver {
    fn begin(&self, _name: &str, location: &'static Location<'static>) {
        let mut state = self.state.borrow_mut();
        if state.depth == 0 {
            state.outermost = Some((line_of(location), self.device.memory().allocated_bytes()));
        }
        state.depth += 1;
    }

    fn end(&self) {
        let mut state = self.state.borrow_mut();
        state.depth = state.depth.saturating_sub(1);
        if state.depth == 0
            && let Some((line, before)) = state.outermost.take()
        {
            let after = self.device.memory().allocated_bytes();
            let row = state.rows.entry(line).or_default();
            row.calls += 1;
            row.total_after_bytes = Some(after);
            row.change_bytes = Some(difference(after, before));
        }
    }

    fn memory_changed(&self, change: &MemoryChange<'_>) {
        if !change.device.is(&self.device) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let bytes = change.allocated_after.abs_diff(change.allocated_before);
        if change.kind == MemoryChangeKind::Allocate {
            let line = line_of(change.location);
            state.live.insert(change.address, (line, bytes));
            let row = state.rows.entry(line).or_default();
            row.allocations += 1;
            row.allocated_bytes += bytes;
            row.live_bytes += bytes;
            row.peak_bytes = row.peak_bytes.max(row.live_bytes);
        } else if let Some((line, bytes)) = state.live.remove(&change.address) {
            let row = state.rows.entry(line).or_default();
            row.live_bytes = row.live_bytes.saturating_sub(bytes);
        } else {
            state.freed_older += bytes;
        }
    }
}

/// A source line in a [`LineReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineRow {
    /// Path of the file, as it was passed to the compiler.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
    /// The line's text, without indentation; empty if the file could not be read.
    pub source: String,
    /// Number of operations that the program called in this line, without backward passes.
    pub calls: u64,
    /// Bytes of the line's blocks that are live when the report is made.
    pub live_bytes: u64,
    /// Maximum of the bytes of the line's live blocks.
    pub peak_bytes: u64,
    /// Allocated bytes of the whole device after the line's last call. `None` for a line without
    /// calls, such as a line that only runs in a checkpoint's recomputation.
    pub total_after_bytes: Option<u64>,
    /// Change of the allocated bytes of the whole device during the line's last call.
    pub change_bytes: Option<i64>,
    /// Bytes of all blocks that the line has allocated, freed or not.
    pub allocated_bytes: u64,
    /// Number of blocks that the line has allocated.
    pub allocations: u64,
}

/// The measurements of a [`LineTable`], with a row for each source line. `Display` formats them as
/// a table.
///
/// The rows' live bytes add up to `end_bytes - start_bytes + freed_older_bytes`, if all memory was
/// allocated and freed for tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineReport {
    /// The lines, in order of file and line number.
    pub rows: Vec<LineRow>,
    /// Allocated bytes of the device when the table was created.
    pub start_bytes: u64,
    /// Bytes of the blocks that were allocated before the table was created and freed afterwards.
    pub freed_older_bytes: u64,
    /// Allocated bytes of the device when the report was made.
    pub end_bytes: u64,
}

impl fmt::Display for LineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["live", "peak", "total after", "change", "allocated", "allocations", "line", "source"];
        let mut table = TextTable::new(&headings, 2);
        for row in &self.rows {
            let LineRow { file, line, source, .. } = row;
            let file = file.rsplit(['/', '\\']).next().unwrap_or(file);
            table.add([
                ByteSize(row.live_bytes).to_string(),
                ByteSize(row.peak_bytes).to_string(),
                row.total_after_bytes.map_or_else(String::new, |bytes| ByteSize(bytes).to_string()),
                row.change_bytes.map_or_else(String::new, change_text),
                ByteSize(row.allocated_bytes).to_string(),
                Count(row.allocations).to_string(),
                format!("{file}:{line}"),
                shortened(source, MAX_SOURCE_CHARACTERS),
            ]);
        }
        table.fmt(f)?;
        let live: u64 = self.rows.iter().map(|row| row.live_bytes).sum();
        let older = self.start_bytes.saturating_sub(self.freed_older_bytes);
        writeln!(f, "{} live of these lines, {} from before", ByteSize(live), ByteSize(older))
    }
}
