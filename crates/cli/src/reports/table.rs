//! Live bytes, peaks and allocations by group: what `table --json` prints.

use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::sites::{Caller, LineCallers, is_dominant};
use vramscope_insight::spans::Marks;
use vramscope_insight::tables::{GroupTable, SpanRow, SpanTableScan, TableRow, group_table};
use vramscope_trace::{DeviceId, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::operation::Operation;

/// The moment of a table's live bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    /// The first moment of each device's most allocated bytes.
    Peak,
    /// The end of the recording.
    End,
    /// After this many events.
    Event(u64),
}

impl FromStr for At {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "peak" => Ok(Self::Peak),
            "end" => Ok(Self::End),
            _ => text.parse().map(Self::Event).map_err(|_| "expected peak, end or the number of an event"),
        }
    }
}

/// The output of `table --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct TableReport {
    pub(crate) devices: Vec<DeviceReport>,
}

/// A device's table in the output of `table --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct DeviceReport {
    pub(crate) device: u16,
    /// Number and name as text for the terminal.
    #[serde(skip)]
    pub(crate) label: String,
    /// The moment of the live bytes.
    pub(crate) event: u64,
    /// Live bytes at the moment.
    pub(crate) total_bytes: u64,
    /// The part of them that is pending free.
    pub(crate) pending_bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocations: u64,
    pub(crate) rows: Vec<RowReport>,
    /// Only if grouped by phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phases: Option<Vec<SpanReport>>,
    /// Only if grouped by phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spans: Option<Vec<SpanReport>>,
}

/// A group in the output of `table --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct RowReport {
    pub(crate) name: String,
    /// The lines of the program that call the model for this memory; only if grouped by line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_called_at: Option<String>,
    pub(crate) bytes: u64,
    /// Live bytes of the operations inside this one; only if grouped by operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nested_bytes: Option<u64>,
    pub(crate) blocks: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocations: u64,
    /// Who calls the line that holds more than nine tenths of the live bytes; only of this line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) callers: Vec<CallerReport>,
}

/// A line of the program that calls another one, in the output of `table --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct CallerReport {
    /// Empty if no line of the program calls.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// A phase, or the spans of one name, in the output of `table --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct SpanReport {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) from_event: u64,
    pub(crate) to_event: u64,
    pub(crate) before_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) after_bytes: u64,
    pub(crate) kept_bytes: i128,
}

impl TableReport {
    /// Computes the table of each device of a recording. `path` is for error messages.
    pub(crate) fn new(path: &Path, recording: &Recording, by: GroupBy, at: At, operation: &Operation) -> Result<Self> {
        if let At::Event(event) = at {
            let (first, last) = (recording.first_event(), recording.end_event());
            if !(first..=last).contains(&event) {
                let message = format!("at {event}: the recording has the moments {first} to {last}");
                return Err(CommandError::file(path, message));
            }
        }
        let mut history = read_history(path, recording, operation)?;
        if by == GroupBy::Category {
            history.infer_categories(recording);
        }
        let mut marks = Marks::default();
        marks.update(recording);
        let mut grouping = Grouping::of(by, recording);
        let devices = recording.devices();
        let devices = devices.map(|id| DeviceReport::new(id, recording, &history, &marks, &mut grouping, at));
        Ok(Self { devices: devices.collect() })
    }
}

impl DeviceReport {
    /// Computes the table of a device.
    fn new(
        id: DeviceId,
        recording: &Recording,
        history: &History,
        marks: &Marks,
        grouping: &mut Grouping,
        at: At,
    ) -> Self {
        let definitions = recording.definitions();
        grouping.set_categories(&history.categories(id));
        let (first, last) = (recording.first_event(), recording.end_event());
        let event = match at {
            At::Peak => recording.series(id).map_or(first, |series| series.peak_allocated().event).clamp(first, last),
            At::End => last,
            At::Event(event) => event,
        };
        let lifetimes = history.lifetimes(id);
        let table = lifetimes.and_then(|all| group_table(all, definitions, grouping, event, (first, last)));
        let GroupTable { rows, total_bytes, pending_bytes, blocks, allocated_bytes, allocations } =
            table.unwrap_or_default();
        let by = grouping.by();
        // Of a device without allocations, both tables are empty.
        let [phases, spans] = lifetimes.filter(|_| by == GroupBy::Phase).map_or_else(Default::default, |all| {
            let mut scan = SpanTableScan::new(marks.spans_on(recording.info(), id), definitions, (first, last));
            while !scan.step(all, definitions, grouping) {}
            [scan.phases(), scan.rows()].map(|rows| rows.iter().map(SpanReport::from).collect())
        });
        let mut reported: Vec<RowReport> = rows.iter().map(|row| RowReport::new(row, by)).collect();
        let most = rows.iter().zip(&mut reported).max_by_key(|(row, _)| row.bytes).filter(|_| by == GroupBy::Line);
        if let (Some((row, reported)), Some(all)) = (most, lifetimes)
            && is_dominant(row.bytes, total_bytes)
        {
            let of_line = all.live_at(event).filter(|one| grouping.group_of_allocation(one) == row.group);
            let callers = LineCallers::of_allocations(of_line).callers(definitions);
            reported.callers = callers.into_iter().map(CallerReport::from).collect();
        }
        let if_by_phase = |rows: Vec<SpanReport>| (by == GroupBy::Phase).then_some(rows);
        Self {
            device: id.0,
            label: recording.info().device_label(id),
            event,
            total_bytes,
            pending_bytes,
            blocks,
            allocated_bytes,
            allocations,
            rows: reported,
            phases: if_by_phase(phases),
            spans: if_by_phase(spans),
        }
    }
}

impl RowReport {
    fn new(row: &TableRow, by: GroupBy) -> Self {
        Self {
            name: row.name.to_string(),
            model_called_at: row.model_calls.clone(),
            bytes: row.bytes,
            nested_bytes: (by == GroupBy::Operation).then_some(row.nested_bytes),
            blocks: row.blocks,
            peak_bytes: row.peak_bytes,
            allocated_bytes: row.allocated_bytes,
            allocations: row.allocations,
            callers: Vec::new(),
        }
    }
}

impl From<Caller> for CallerReport {
    fn from(Caller { name, bytes, blocks }: Caller) -> Self {
        Self { name, bytes, blocks }
    }
}

impl From<&SpanRow> for SpanReport {
    fn from(row: &SpanRow) -> Self {
        let kept_bytes = row.kept_bytes();
        let SpanRow { name, count, from_event, to_event, before_bytes, peak_bytes, after_bytes } = row.clone();
        Self { name, count, from_event, to_event, before_bytes, peak_bytes, after_bytes, kept_bytes }
    }
}
