//! `vramscope table`: live bytes, peaks and allocations by group.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comfy_table::CellAlignment;
use vramscope_insight::difference::change_text;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, Count};

use crate::error::Result;
use crate::escape::escape_controls;
use crate::input::Input;
use crate::number::parse_whole;
use crate::operation::Operation;
use crate::reports::table::{At, DeviceReport, RowReport, SpanReport, TableReport};
use crate::table;
use crate::terminal;

/// Maximum number of callers that are printed for a line.
const MAX_CALLERS: usize = 4;

/// Text after the options in `vramscope table --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope table run.vram
  vramscope table snapshot.pickle --by op --at end --limit 10
  vramscope table run.vram --by phase --at 1200 --json";

/// Arguments of `vramscope table`: the recording, what to group by, and the moment.
#[derive(Args, Debug)]
pub(crate) struct TableArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Group by
    #[arg(long, value_name = "KEY", value_parser = group_by_parser(), default_value = "line")]
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

/// Parses the name of a grouping.
fn group_by_parser() -> impl TypedValueParser<Value = GroupBy> {
    PossibleValuesParser::new(GroupBy::ALL.map(GroupBy::name))
        .map(|name| GroupBy::from_name(&name).expect("only names of groupings are possible"))
}

/// Prints the table of a recording as text or as JSON.
pub(crate) fn run(arguments: &TableArguments) -> Result {
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let report = TableReport::new(&arguments.file, &recording, arguments.by, arguments.at, &Operation::on_terminal())?;
    if arguments.json {
        return terminal::print_json(&report);
    }
    let devices = report.devices.iter().map(|device| device_text(device, arguments));
    terminal::print(&devices.collect::<Vec<_>>().join("\n"))
}

/// Returns the table as text for the terminal.
fn device_text(device: &DeviceReport, arguments: &TableArguments) -> String {
    let when = match arguments.at {
        At::Peak => "at the peak, ",
        At::End => "at the end, ",
        At::Event(_) => "at ",
    };
    let mut out = format!("{}, {when}event {}\n", escape_controls(&device.label), Count(device.event));
    if device.pending_bytes > 0 {
        out += &format!("{} of the live bytes are pending free\n", ByteSize(device.pending_bytes));
    }
    out += &rows_text(device, arguments);
    for (rows, title) in [(&device.phases, "phase"), (&device.spans, "span")] {
        if let Some(rows) = rows.as_deref().filter(|rows| !rows.is_empty()) {
            out += &format!("\n{}", spans_text(rows, title, arguments.limit));
        }
    }
    out
}

/// Returns the rows of the groups and their sum.
fn rows_text(device: &DeviceReport, arguments: &TableArguments) -> String {
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
    let shown = shown_rows(device.rows.len(), arguments.limit);
    for row in &device.rows[..shown] {
        let call = row.model_called_at.as_ref().filter(|_| row.callers.is_empty());
        let call = call.map_or_else(String::new, |line| format!(", model called at {line}"));
        table.add_row(cells(
            bytes(row.bytes),
            bytes(row.nested_bytes.unwrap_or(0)),
            [
                count(row.blocks),
                bytes(row.peak_bytes),
                bytes(row.allocated_bytes),
                count(row.allocations),
                escape_controls(&format!("{}{call}", row.name)),
            ],
        ));
        for caller in row.callers.iter().take(MAX_CALLERS) {
            let name = match caller.name.as_str() {
                "" => "  no line of the program calls it".to_owned(),
                name => format!("  called at {}", escape_controls(name)),
            };
            let unknown = String::new;
            let rest = [count(caller.blocks), unknown(), unknown(), unknown(), name];
            table.add_row(cells(bytes(caller.bytes), unknown(), rest));
        }
    }
    let hidden = &device.rows[shown..];
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
        count(device.blocks),
        String::new(),
        bytes(device.allocated_bytes),
        count(device.allocations),
        "total".to_owned(),
    ];
    table.add_row(cells(bytes(device.total_bytes), String::new(), total));
    table::render(table, terminal::columns())
}

/// Returns the table of phases or spans as text. `title` is `phase` or `span`, for the heading.
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

/// Returns the line that counts the rows beyond the limit.
fn more_rows(rows: usize) -> String {
    format!("{} more; --limit 0 prints all", Count(rows as u64))
}
