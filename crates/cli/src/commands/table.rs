//! `vramscope table`: live bytes, peaks and allocations by group.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::CellAlignment;
use serde::Serialize;
use vramscope_insight::difference::change_text;
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::spans::Marks;
use vramscope_insight::tables::{GroupTable, SpanRow, SpanTableScan, TableRow, group_table};
use vramscope_trace::{ByteSize, Count, DeviceId, Recording};

use crate::error::{CommandError, Result};
use crate::escape::escape_controls;
use crate::history::read_history;
use crate::input::Input;
use crate::number::parse_whole;
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope table --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope table run.vram --by line
  vramscope table snapshot.pickle --by op --at end --limit 10
  vramscope table run.vram --by phase --at 1200 --json";

/// Arguments of `vramscope table`: the recording, what to group by, and the moment.
#[derive(Args, Debug)]
pub(crate) struct TableArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Group by
    #[arg(long, value_name = "KEY", value_parser = group_by_parser())]
    by: GroupBy,
    /// Moment of the live bytes: peak (of the allocated bytes), end, or the number of an event
    #[arg(long, value_name = "peak|end|EVENT", default_value = "peak")]
    at: At,
    /// Print at most this many rows of each device; 0 prints all. --json always has all
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = parse_whole::<usize>)]
    limit: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The moment of a table's live bytes.
#[derive(Clone, Copy, Debug)]
enum At {
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

/// Parses the name of a grouping.
fn group_by_parser() -> impl TypedValueParser<Value = GroupBy> {
    PossibleValuesParser::new(GroupBy::ALL.map(GroupBy::name))
        .map(|name| GroupBy::from_name(&name).expect("only names of groupings are possible"))
}

/// The output of `table --json`.
#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<DeviceReport>,
}

/// A device's table in the output of `table --json`.
#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    /// Number and name as text for the terminal.
    #[serde(skip)]
    label: String,
    /// The moment of the live bytes.
    event: u64,
    /// Live bytes at the moment.
    total_bytes: u64,
    /// The part of them that is pending free.
    pending_bytes: u64,
    blocks: u64,
    allocated_bytes: u64,
    allocations: u64,
    rows: Vec<RowReport>,
    /// Only if grouped by phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<Vec<SpanReport>>,
    /// Only if grouped by phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    spans: Option<Vec<SpanReport>>,
}

/// A group in the output of `table --json`.
#[derive(Debug, Serialize)]
struct RowReport {
    name: String,
    bytes: u64,
    /// Live bytes of the operations inside this one; only if grouped by operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    nested_bytes: Option<u64>,
    blocks: u64,
    peak_bytes: u64,
    allocated_bytes: u64,
    allocations: u64,
}

/// A phase, or the spans of one name, in the output of `table --json`.
#[derive(Debug, Serialize)]
struct SpanReport {
    name: String,
    count: u64,
    from_event: u64,
    to_event: u64,
    before_bytes: u64,
    peak_bytes: u64,
    after_bytes: u64,
    kept_bytes: i128,
}

/// Prints the table of a recording as text or as JSON.
pub(crate) fn run(arguments: &TableArguments) -> Result {
    let path = &arguments.file;
    let recording = Input::open(path)?.into_recording()?;
    if let At::Event(event) = arguments.at {
        let (first, last) = (recording.first_event(), recording.end_event());
        if !(first..=last).contains(&event) {
            let message = format!("--at {event}: the recording has the moments {first} to {last}");
            return Err(CommandError::file(path, message));
        }
    }
    let history = read_history(path, &recording)?;
    let mut marks = Marks::default();
    marks.update(&recording);
    let mut grouping = Grouping::of(arguments.by, &recording);
    let devices = recording.devices();
    let devices = devices.map(|id| DeviceReport::new(id, &recording, &history, &marks, &mut grouping, arguments.at));
    let report = Report { devices: devices.collect() };
    if arguments.json {
        let json = serde_json::to_string(&report).expect("whole numbers and text always serialize");
        return terminal::print(&format!("{json}\n"));
    }
    let devices = report.devices.iter().map(|device| device.text(arguments));
    terminal::print(&devices.collect::<Vec<_>>().join("\n"))
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
            rows: rows.into_iter().map(|row| RowReport::new(&row, by)).collect(),
            phases: if_by_phase(phases),
            spans: if_by_phase(spans),
        }
    }

    /// Returns the table as text for the terminal.
    fn text(&self, arguments: &TableArguments) -> String {
        let when = match arguments.at {
            At::Peak => "at the peak, ",
            At::End => "at the end, ",
            At::Event(_) => "at ",
        };
        let mut out = format!("{}, {when}event {}\n", escape_controls(&self.label), Count(self.event));
        if self.pending_bytes > 0 {
            out += &format!("{} of the live bytes are pending free\n", ByteSize(self.pending_bytes));
        }
        out += &self.rows_text(arguments);
        for (rows, title) in [(&self.phases, "phase"), (&self.spans, "span")] {
            if let Some(rows) = rows.as_deref().filter(|rows| !rows.is_empty()) {
                out += &format!("\n{}", spans_text(rows, title, arguments.limit));
            }
        }
        out
    }

    /// Returns the rows of the groups and their sum.
    fn rows_text(&self, arguments: &TableArguments) -> String {
        let has_nested = arguments.by == GroupBy::Operation;
        let nested = |text: String| if has_nested { Some(text) } else { None };
        let cells = |live: String, inner: String, rest: [String; 5]| {
            [live].into_iter().chain(nested(inner)).chain(rest).collect::<Vec<String>>()
        };
        let bytes = |bytes| ByteSize(bytes).to_string();
        let count = |count| Count(count).to_string();
        let headings = ["blocks", "peak", "allocated", "allocations", arguments.by.name()].map(str::to_owned);
        let mut table = table::new(cells("live".to_owned(), "nested".to_owned(), headings), 0);
        let last = table.column_count() - 1;
        table.column_mut(last).expect("the table has columns").set_cell_alignment(CellAlignment::Left);
        let shown = shown_rows(self.rows.len(), arguments.limit);
        for row in &self.rows[..shown] {
            table.add_row(cells(
                bytes(row.bytes),
                bytes(row.nested_bytes.unwrap_or(0)),
                [
                    count(row.blocks),
                    bytes(row.peak_bytes),
                    bytes(row.allocated_bytes),
                    count(row.allocations),
                    escape_controls(&row.name),
                ],
            ));
        }
        let hidden = &self.rows[shown..];
        if !hidden.is_empty() {
            let sum = |of: fn(&RowReport) -> u64| hidden.iter().map(of).fold(0, u64::saturating_add);
            table.add_row(cells(
                bytes(sum(|row| row.bytes)),
                String::new(),
                [
                    count(sum(|row| row.blocks)),
                    String::new(),
                    bytes(sum(|row| row.allocated_bytes)),
                    count(sum(|row| row.allocations)),
                    more_rows(hidden.len()),
                ],
            ));
        }
        let total = [
            count(self.blocks),
            String::new(),
            bytes(self.allocated_bytes),
            count(self.allocations),
            "total".to_owned(),
        ];
        table.add_row(cells(bytes(self.total_bytes), String::new(), total));
        table::render(table, terminal::columns())
    }
}

impl RowReport {
    fn new(row: &TableRow, by: GroupBy) -> Self {
        Self {
            name: row.name.to_string(),
            bytes: row.bytes,
            nested_bytes: (by == GroupBy::Operation).then_some(row.nested_bytes),
            blocks: row.blocks,
            peak_bytes: row.peak_bytes,
            allocated_bytes: row.allocated_bytes,
            allocations: row.allocations,
        }
    }
}

impl From<&SpanRow> for SpanReport {
    fn from(row: &SpanRow) -> Self {
        let kept_bytes = row.kept_bytes();
        let SpanRow { name, count, from_event, to_event, before_bytes, peak_bytes, after_bytes } = row.clone();
        Self { name, count, from_event, to_event, before_bytes, peak_bytes, after_bytes, kept_bytes }
    }
}

/// Returns the table of phases or spans as text; `title` says which, in the singular.
fn spans_text(spans: &[SpanReport], title: &str, limit: usize) -> String {
    let title = format!("{title} with the highest peak");
    let mut table = table::new(["before", "peak", "after", "kept", "count", &title], 0);
    table.column_mut(5).expect("the table has six columns").set_cell_alignment(CellAlignment::Left);
    let shown = shown_rows(spans.len(), limit);
    for span in &spans[..shown] {
        table.add_row([
            ByteSize(span.before_bytes).to_string(),
            ByteSize(span.peak_bytes).to_string(),
            ByteSize(span.after_bytes).to_string(),
            change_text(span.kept_bytes),
            Count(span.count).to_string(),
            escape_controls(&span.name),
        ]);
    }
    let mut out = table::render(table, terminal::columns());
    if shown < spans.len() {
        out += &format!("{}\n", more_rows(spans.len() - shown));
    }
    out
}

/// Returns how many of `rows` rows are printed; the limit 0 prints all.
fn shown_rows(rows: usize, limit: usize) -> usize {
    if limit == 0 { rows } else { rows.min(limit) }
}

/// Returns the text that stands for rows over the limit.
fn more_rows(rows: usize) -> String {
    format!("{} more; --limit 0 prints all", Count(rows as u64))
}
