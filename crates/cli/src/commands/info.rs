//! `vramscope info`: summarizes a recording.

use std::path::{Path, PathBuf};

use clap::Args;
use vramscope_insight::verdict::Verdict;
use vramscope_trace::{ByteSize, Count, DurationNs, Recording};

use crate::error::Result;
use crate::escape::escape_controls;
use crate::input::{Format, Input, skip_damaged};
use crate::operation::Operation;
use crate::reports::diagnose::problems;
use crate::reports::info::{DeviceSummary, Summary, summary};
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope info --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope info run.vram
  vramscope info snapshot.pickle.zst --json";

/// Arguments of `vramscope info`: the recording, and whether to print JSON.
#[derive(Args, Debug)]
pub(crate) struct InfoArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the summary of a recording as text or as JSON.
pub(crate) fn run(arguments: &InfoArguments) -> Result {
    let (summary, recording) = summary(&arguments.file, Input::open(&arguments.file)?)?;
    if arguments.json {
        return terminal::print_json(&summary);
    }
    // Without a verdict, as of a damaged recording or of another allocator, the rest stays useful.
    let first_line = if summary.damage.is_none() { verdict(&arguments.file, recording).ok() } else { None };
    terminal::print(&(first_line.unwrap_or_default() + &text(&summary)))
}

/// Returns what to say first about the recording at `path`, as a line.
fn verdict(path: &Path, mut recording: Recording) -> Result<String> {
    let operation = Operation::until_signal()?;
    skip_damaged(&mut recording, path, &operation)?;
    recording.read_marks();
    let diagnosed = problems(path, &recording, None, &operation)?.diagnosed;
    Ok(escape_controls(&Verdict::new(&recording, &diagnosed).summary) + "\n")
}

/// Returns a recording's summary as text for the terminal.
fn text(summary: &Summary) -> String {
    let mut out = format!("{}\n", escape_controls(&summary.file));
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            out += &format!("  {name:<10}{}\n", escape_controls(value));
        }
    };
    let Format { name, version } = summary.format;
    row("format", &version.map_or(name.to_owned(), |version| format!("{name}, version {version}")));
    row("source", &summary.program.source);
    row("writer", &summary.program.writer);
    row("settings", &summary.program.alloc_conf);
    let events = Count(summary.events).of("event", "events");
    let duration = DurationNs(summary.duration_ns);
    row(
        "history",
        &match (summary.events, summary.lacks_times) {
            (0, _) => "none: what was allocated and freed before is unknown".to_owned(),
            (_, true) => events,
            (_, false) => format!("{events} in {duration}"),
        },
    );
    if summary.lost_events > 0 {
        row("lost", &Count(summary.lost_events).of("event", "events"));
    }
    // While a file of another format is imported, its notes are printed on stderr.
    if summary.format.version.is_some() {
        summary.notes.iter().for_each(|note| row("note", note));
    }
    for device in &summary.devices {
        out += &device_text(device);
    }
    out
}

/// Returns a device's summary as text for the terminal: a table of bytes, then free blocks,
/// segments, errors and history.
fn device_text(summary: &DeviceSummary) -> String {
    let mut title = escape_controls(&summary.label);
    if summary.total_bytes > 0 {
        title += &format!(", {}", ByteSize(summary.total_bytes));
    }
    let mut table = table::new(["  ", "at the end", "peak", "at event"], 1);
    let mut row = |name: &str, bytes: u64, peak: Option<(u64, Option<u64>)>| {
        let (peak, event) = peak.unzip();
        table.add_row([
            format!("  {name}"),
            ByteSize(bytes).to_string(),
            peak.map_or_else(String::new, |bytes| ByteSize(bytes).to_string()),
            event.flatten().map_or_else(String::new, |event| Count(event).to_string()),
        ]);
    };
    let peak = |bytes: u64, event| (summary.events > 0).then_some((bytes, event));
    let DeviceSummary { peak_allocated_event, peak_active_event, peak_reserved_event, .. } = *summary;
    row("allocated", summary.allocated_bytes, peak(summary.peak_allocated_bytes, peak_allocated_event));
    row("active", summary.active_bytes, peak(summary.peak_active_bytes, peak_active_event));
    row("reserved", summary.reserved_bytes, peak(summary.peak_reserved_bytes, peak_reserved_event));
    if !summary.lacks_requested {
        row("requested", summary.requested_bytes, None);
    }
    row("free", summary.free_bytes, None);
    let table = table::render(table, None);
    let largest = ByteSize(summary.largest_free_bytes);
    let free_blocks = Count(summary.free_blocks).of("free block", "free blocks");
    let segments = Count(summary.segments).of("segment", "segments");
    let blocks = Count(summary.blocks).of("live block", "live blocks");
    let events = Count(summary.events).of("event", "events");
    let ooms = Count(summary.ooms).of("out-of-memory error", "out-of-memory errors");
    let mut text = format!("\n{title}\n{table}");
    text += &match summary.segment_source {
        "unknown" => format!("  {blocks}; the segments are unknown, and what is free in them\n"),
        source => {
            let inferred = if source == "inferred" { " (inferred)" } else { "" };
            let parts = &summary.reserved_parts;
            format!("  reserved: {parts}\n  {segments}{inferred}, {blocks}; {free_blocks}, largest {largest}\n")
        }
    };
    let history = match (summary.events, summary.history_complete) {
        (0, _) => return text,
        (_, true) => "history complete: recorded since the allocator was empty",
        (_, false) => "history incomplete: memory was in use before the first event, or events are missing",
    };
    text + &format!("  {events}, {ooms}\n  {history}\n")
}
