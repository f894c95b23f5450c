//! `vramscope info`: summarizes a recording.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use vramscope_trace::{
    ByteSize, Count, DeviceId, DeviceInfo, DeviceState, DurationNs, MemoryState, Peak, Percent, Recording, Replay,
};

use crate::error::{CommandError, Result};
use crate::escape::escape_controls;
use crate::input::{Format, Input};
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
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `info --json`. Bytes are those at the end of the recording, peaks those of the
/// recorded events.
#[derive(Debug, Serialize)]
struct Summary {
    /// The path as given on the command line.
    file: String,
    format: FormatSummary,
    /// Where and why the file could not be read further; `None` for an intact file.
    damage: Option<String>,
    program: ProgramSummary,
    events: u64,
    lost_events: u64,
    duration_ns: u64,
    /// What the user must know of how the recording was made.
    notes: Vec<String>,
    devices: Vec<DeviceSummary>,
}

/// The input's file format in the output of `info --json`; `version` is `None` for formats without
/// one.
#[derive(Debug, Serialize)]
struct FormatSummary {
    name: &'static str,
    version: Option<u16>,
}

/// The recorded program's name, the recording's writer and the allocator settings, in the output of
/// `info --json`.
#[derive(Debug, Serialize)]
struct ProgramSummary {
    source: String,
    writer: String,
    alloc_conf: String,
}

/// A device in the output of `info --json`: memory at the end, peaks, and whether its history is
/// complete.
#[derive(Debug, Serialize)]
struct DeviceSummary {
    device: u16,
    /// Number and name as text for the terminal.
    #[serde(skip)]
    label: String,
    name: String,
    /// The device's memory; 0 if unknown.
    total_bytes: u64,
    /// The rank of the process that the device belongs to, in a recording of several processes.
    rank: Option<u32>,
    events: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    active_bytes: u64,
    requested_bytes: u64,
    peak_allocated_bytes: u64,
    peak_allocated_event: Option<u64>,
    peak_active_bytes: u64,
    peak_active_event: Option<u64>,
    peak_reserved_bytes: u64,
    peak_reserved_event: Option<u64>,
    free_bytes: u64,
    free_blocks: u64,
    largest_free_bytes: u64,
    fragmentation: f64,
    segments: u64,
    blocks: u64,
    ooms: u64,
    history_complete: bool,
}

/// Prints the summary of a recording as text or as JSON.
pub(crate) fn run(arguments: &InfoArguments) -> Result {
    let input = Input::open(&arguments.file)?;
    let format = input.format();
    let (recording, damage) = input.into_indexed_recording()?;
    let mut replay = Replay::new();
    let start =
        replay.seek(&recording, recording.first_event()).map_err(|error| CommandError::file(&arguments.file, error))?;
    let mut summary = summarize(&arguments.file, format, &recording, start);
    summary.damage = damage.map(|damage| damage.to_string());
    if !arguments.json {
        return terminal::print(&text(&summary));
    }
    let json = serde_json::to_string(&summary).expect("finite numbers and text always serialize");
    terminal::print(&format!("{json}\n"))
}

/// Returns the summary of the recording at `path`; the caller adds the file's damage, if any.
/// `start` is the memory state before the first event.
fn summarize(path: &Path, format: Format, recording: &Recording, start: &MemoryState) -> Summary {
    let device = |id| {
        let end = recording.end_state().device(id)?;
        Some(summarize_device(id, recording, start.device(id), end))
    };
    let info = recording.info();
    Summary {
        file: path.to_string_lossy().into_owned(),
        format: FormatSummary { name: format.name, version: format.version },
        damage: None,
        program: ProgramSummary {
            source: info.source.clone(),
            writer: info.writer.clone(),
            alloc_conf: info.alloc_conf.clone(),
        },
        events: recording.events(),
        lost_events: recording.lost_events(),
        duration_ns: recording.end_ns().saturating_sub(recording.start_ns()),
        notes: info.import_notes.clone(),
        devices: recording.devices().filter_map(device).collect(),
    }
}

/// Summarizes a device from its counters over time and its memory at the recording's `start` and
/// `end`; `start` is `None` if the device appears later.
fn summarize_device(
    id: DeviceId,
    recording: &Recording,
    start: Option<&DeviceState>,
    end: &DeviceState,
) -> DeviceSummary {
    let counters = end.counters();
    let series = recording.series(id);
    let bytes = |peak: Option<Peak>| peak.map_or(0, |peak| peak.bytes);
    let event = |peak: Option<Peak>| peak.map(|peak| peak.event);
    let allocated = series.map(|series| series.peak_allocated());
    let active = series.map(|series| series.peak_active());
    let reserved = series.map(|series| series.peak_reserved());
    let free = end.free_space();
    let starts_empty = start.is_none_or(|start| start.segments().len() == 0 && start.events() == 0);
    let info = device_info(recording, id);
    let declared_complete = info.is_none_or(|info| info.history_complete);
    DeviceSummary {
        device: id.0,
        label: recording.info().device_label(id),
        name: info.map(|info| info.name.clone()).unwrap_or_default(),
        total_bytes: info.map_or(0, |info| info.total_bytes),
        rank: info.and_then(|info| info.rank),
        events: end.events() - start.map_or(0, DeviceState::events).min(end.events()),
        allocated_bytes: counters.allocated,
        reserved_bytes: counters.reserved,
        active_bytes: counters.active,
        requested_bytes: counters.requested,
        peak_allocated_bytes: bytes(allocated),
        peak_allocated_event: event(allocated),
        peak_active_bytes: bytes(active),
        peak_active_event: event(active),
        peak_reserved_bytes: bytes(reserved),
        peak_reserved_event: event(reserved),
        free_bytes: free.total,
        free_blocks: free.blocks,
        largest_free_bytes: free.largest,
        fragmentation: free.fragmentation(),
        segments: end.segments().len() as u64,
        blocks: end.blocks().len() as u64,
        ooms: end.ooms(),
        history_complete: declared_complete
            && starts_empty
            && recording.first_event() == 0
            && recording.lost_events() == 0,
    }
}

/// Returns the recording's description of a device; `None` if it has none.
fn device_info(recording: &Recording, id: DeviceId) -> Option<&DeviceInfo> {
    recording.info().devices.iter().find(|info| info.device == id.0)
}

/// Returns a recording's summary as text for the terminal.
fn text(summary: &Summary) -> String {
    let mut out = format!("{}\n", escape_controls(&summary.file));
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            out += &format!("  {name:<10}{}\n", escape_controls(value));
        }
    };
    let FormatSummary { name, version } = summary.format;
    row("format", &version.map_or(name.to_owned(), |version| format!("{name}, version {version}")));
    row("source", &summary.program.source);
    row("writer", &summary.program.writer);
    row("settings", &summary.program.alloc_conf);
    let events = Count(summary.events).of("event", "events");
    row("history", &format!("{events} in {}", DurationNs(summary.duration_ns)));
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
    let DeviceSummary { peak_allocated_event, peak_active_event, peak_reserved_event, .. } = *summary;
    row("allocated", summary.allocated_bytes, Some((summary.peak_allocated_bytes, peak_allocated_event)));
    row("active", summary.active_bytes, Some((summary.peak_active_bytes, peak_active_event)));
    row("reserved", summary.reserved_bytes, Some((summary.peak_reserved_bytes, peak_reserved_event)));
    row("requested", summary.requested_bytes, None);
    row("free", summary.free_bytes, None);
    let table = table::render(table, None);
    let largest = ByteSize(summary.largest_free_bytes);
    let free_blocks = Count(summary.free_blocks).of("free block", "free blocks");
    let fragmentation = Percent(summary.fragmentation);
    let segments = Count(summary.segments).of("segment", "segments");
    let blocks = Count(summary.blocks).of("live block", "live blocks");
    let events = Count(summary.events).of("event", "events");
    let ooms = Count(summary.ooms).of("out-of-memory error", "out-of-memory errors");
    let history = if summary.history_complete {
        "history complete: recorded since the allocator was empty"
    } else {
        "history incomplete: memory was in use before the first event, or events are missing"
    };
    format!(
        "\n{title}\n{table}  {free_blocks}, largest {largest}; fragmentation {fragmentation}\n  \
         {segments}, {blocks}; {events}, {ooms}\n  {history}\n"
    )
}
