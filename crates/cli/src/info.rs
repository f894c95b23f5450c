//! `vramscope info`: what is in a file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use vramscope_trace::{DeviceId, DeviceInfo, DeviceState, MemoryState, Peak, Recording, Replay};

use crate::failure::{Failure, Outcome};
use crate::input::{Format, Input};
use crate::screen;
use crate::units;

/// Arguments of `info`.
#[derive(Args, Debug)]
pub(crate) struct InfoOptions {
    /// A recording: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints. Bytes are those at the end of the recording, peaks those over what was recorded.
#[derive(Debug, Serialize)]
struct Summary {
    format: FormatSummary,
    events: u64,
    lost_events: u64,
    duration_ns: u64,
    devices: Vec<DeviceSummary>,
}

#[derive(Debug, Serialize)]
struct FormatSummary {
    name: &'static str,
    version: Option<u16>,
}

#[derive(Debug, Serialize)]
struct DeviceSummary {
    device: u16,
    name: String,
    /// Of the process that it belongs to, in a recording of several.
    rank: Option<u32>,
    events: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    active_bytes: u64,
    requested_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    segments: u64,
    blocks: u64,
    ooms: u64,
    history_complete: bool,
}

/// Prints what is in the file.
pub(crate) fn run(options: &InfoOptions) -> Outcome {
    let input = Input::open(&options.file)?;
    let format = input.format();
    let recording = input.recording_by_index()?;
    let mut replay = Replay::new();
    let begin =
        replay.seek(&recording, recording.first_event()).map_err(|error| Failure::file(&options.file, error))?;
    let summary = summary(format, &recording, begin);
    if !options.json {
        return screen::print(&table(&options.file, &summary, &recording));
    }
    let json = serde_json::to_string(&summary).expect("numbers and plain names always serialize");
    screen::print(&format!("{json}\n"))
}

fn summary(format: Format, recording: &Recording, begin: &MemoryState) -> Summary {
    let device = |id| {
        let state = recording.end_state().device(id)?;
        Some(device_summary(id, recording, begin.device(id), state))
    };
    Summary {
        format: FormatSummary { name: format.name, version: format.version },
        events: recording.events(),
        lost_events: recording.lost_events(),
        duration_ns: recording.end_ns().saturating_sub(recording.start_ns()),
        devices: recording.devices().filter_map(device).collect(),
    }
}

fn device_summary(
    id: DeviceId,
    recording: &Recording,
    begin: Option<&DeviceState>,
    end: &DeviceState,
) -> DeviceSummary {
    let counters = end.counters();
    let peak = |of: fn(&vramscope_trace::Series) -> Peak| recording.series(id).map_or(0, |series| of(series).bytes);
    let began_empty = begin.is_none_or(|begin| begin.segments().len() == 0 && begin.events() == 0);
    let info = device_info(recording, id);
    let declared = info.is_none_or(|info| info.history_complete);
    DeviceSummary {
        device: id.0,
        name: info.map(|info| info.name.clone()).unwrap_or_default(),
        rank: info.and_then(|info| info.rank),
        events: end.events() - begin.map_or(0, DeviceState::events).min(end.events()),
        allocated_bytes: counters.allocated,
        reserved_bytes: counters.reserved,
        active_bytes: counters.active,
        requested_bytes: counters.requested,
        peak_allocated_bytes: peak(|series| series.peak_allocated()),
        peak_reserved_bytes: peak(|series| series.peak_reserved()),
        segments: end.segments().len() as u64,
        blocks: end.blocks().len() as u64,
        ooms: end.ooms(),
        history_complete: declared && began_empty && recording.first_event() == 0 && recording.lost_events() == 0,
    }
}

fn device_info(recording: &Recording, id: DeviceId) -> Option<&DeviceInfo> {
    recording.info().devices.iter().find(|info| info.device == id.0)
}

fn table(path: &Path, summary: &Summary, recording: &Recording) -> String {
    let mut out = format!("{}\n", screen::one_line(&path.to_string_lossy()));
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            out.push_str(format!("  {name:<10}{}\n", screen::one_line(value)).as_str());
        }
    };
    let FormatSummary { name, version } = summary.format;
    row("format", &version.map_or(name.to_owned(), |version| format!("{name}, version {version}")));
    let info = recording.info();
    row("source", &info.source);
    row("writer", &info.writer);
    row("settings", &info.alloc_conf);
    let events = units::counted(summary.events, "event", "events");
    let duration = units::duration(Duration::from_nanos(summary.duration_ns));
    row("history", &format!("{events} in {duration}"));
    if summary.lost_events > 0 {
        row("lost", &units::counted(summary.lost_events, "event", "events"));
    }
    for device in &summary.devices {
        device_table(&mut out, device, recording);
    }
    out
}

fn device_table(out: &mut String, summary: &DeviceSummary, recording: &Recording) {
    let id = DeviceId(summary.device);
    let mut title = format!("\ndevice {}", summary.device);
    if let Some(info) = device_info(recording, id) {
        if !info.name.is_empty() {
            title += &format!(": {}", screen::one_line(&info.name));
        }
        if info.total_bytes > 0 {
            title += &format!(", {}", units::bytes(info.total_bytes));
        }
    }
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    line(title);
    line(format!("  {:<11}{:>12}{:>12}{:>14}", "", "at the end", "peak", "at event"));
    let series = recording.series(id);
    let peaked = |name: &str, bytes: u64, peak: Option<Peak>| {
        let (most, event) =
            peak.map_or((String::new(), String::new()), |peak| (units::bytes(peak.bytes), units::count(peak.event)));
        format!("  {name:<11}{:>12}{most:>12}{event:>14}", units::bytes(bytes)).trim_end().to_owned()
    };
    line(peaked("allocated", summary.allocated_bytes, series.map(|series| series.peak_allocated())));
    line(peaked("active", summary.active_bytes, series.map(|series| series.peak_active())));
    line(peaked("reserved", summary.reserved_bytes, series.map(|series| series.peak_reserved())));
    line(peaked("requested", summary.requested_bytes, None));
    let free = recording.end_state().device(id).map(DeviceState::free_space).unwrap_or_default();
    let largest = units::bytes(free.largest);
    line(format!(
        "  {:<11}{:>12}  in {}, the largest {largest}",
        "free",
        units::bytes(free.total),
        units::counted(free.blocks, "block", "blocks")
    ));
    line(format!("  {:<11}{:>10.1} %", "fragmented", free.fragmentation() * 100.0));
    let segments = units::counted(summary.segments, "segment", "segments");
    let blocks = units::counted(summary.blocks, "live block", "live blocks");
    let events = units::counted(summary.events, "event", "events");
    let ooms = units::counted(summary.ooms, "failed request", "failed requests");
    line(format!("  {segments}, {blocks}; {events}, {ooms}"));
    line(if summary.history_complete {
        "  complete: recorded since the allocator was empty".to_owned()
    } else {
        "  not complete: memory was in use before the first event, or events are missing".to_owned()
    });
}
