//! The summary of a recording: what `info --json` prints.

use std::path::Path;

use serde::Serialize;
use vramscope_insight::placement::{recorded_settings, recording_notes};
use vramscope_insight::pools::{ReservedBreakdown, device_usage};
use vramscope_trace::{DeviceId, DeviceState, MemoryState, Peak, Recording, Replay, SegmentSource};

use crate::error::{CommandError, Result};
use crate::input::{Format, Input};

/// The output of `info --json`. Bytes are values at the end of the recording, peaks are over the
/// recorded events.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    /// The path as given on the command line.
    pub(crate) file: String,
    pub(crate) format: Format,
    /// Where and why the file could not be read further; `None` for an intact file.
    pub(crate) damage: Option<String>,
    pub(crate) program: ProgramSummary,
    pub(crate) events: u64,
    pub(crate) lost_events: u64,
    pub(crate) duration_ns: u64,
    /// Whether the source has no times; `duration_ns` is then 0.
    pub(crate) lacks_times: bool,
    /// Limitations of the recording that the user must know.
    pub(crate) notes: Vec<String>,
    pub(crate) devices: Vec<DeviceSummary>,
}

/// The recorded program's name, the recording's writer and the allocator settings, in the output of
/// `info --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct ProgramSummary {
    pub(crate) source: String,
    pub(crate) writer: String,
    pub(crate) alloc_conf: String,
}

/// A device in the output of `info --json`: memory at the end, peaks, and whether its history is
/// complete.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct DeviceSummary {
    pub(crate) device: u16,
    /// Number and name as text for the terminal.
    #[serde(skip)]
    pub(crate) label: String,
    pub(crate) name: String,
    /// The device's memory; 0 if unknown.
    pub(crate) total_bytes: u64,
    /// The rank of the process that the device belongs to, in a recording of several processes.
    pub(crate) rank: Option<u32>,
    pub(crate) events: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) active_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) peak_allocated_bytes: u64,
    pub(crate) peak_allocated_event: Option<u64>,
    pub(crate) peak_active_bytes: u64,
    pub(crate) peak_active_event: Option<u64>,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) peak_reserved_event: Option<u64>,
    pub(crate) free_bytes: u64,
    pub(crate) free_blocks: u64,
    pub(crate) largest_free_bytes: u64,
    pub(crate) fragmentation: f64,
    /// What the reserved bytes consist of, for the terminal.
    #[serde(skip)]
    pub(crate) reserved_parts: ReservedBreakdown,
    pub(crate) segments: u64,
    pub(crate) blocks: u64,
    pub(crate) ooms: u64,
    pub(crate) history_complete: bool,
    /// Where the segments come from: recorded, inferred or unknown.
    pub(crate) segment_source: &'static str,
    /// Whether the requested sizes are unknown: they are those of blocks.
    pub(crate) lacks_requested: bool,
    /// Whether streams are unknown.
    pub(crate) lacks_streams: bool,
}

/// Reads the input from `path` and summarizes it. Returns the recording, too.
pub(crate) fn summary(path: &Path, input: Input) -> Result<(Summary, Recording)> {
    let format = input.format();
    let (recording, damage) = input.into_indexed_recording()?;
    let mut replay = Replay::new();
    let start = replay.seek(&recording, recording.first_event()).map_err(|error| CommandError::file(path, error))?;
    let summary = summarize(path, format, &recording, start);
    Ok((Summary { damage: damage.map(|damage| damage.to_string()), ..summary }, recording))
}

/// Returns the summary of the recording at `path`; the caller adds the file's damage, if any.
/// `start` is the memory state before the first event.
fn summarize(path: &Path, format: Format, recording: &Recording, start: &MemoryState) -> Summary {
    let device = |id| {
        let end = recording.end_state().device(id)?;
        Some(summarize_device(id, recording, start.device(id), end))
    };
    let info = recording.info();
    let lacks_times = info.lacks_times || recording.events() == 0;
    Summary {
        file: path.to_string_lossy().into_owned(),
        format,
        damage: None,
        program: ProgramSummary {
            source: info.source.clone(),
            writer: info.writer.clone(),
            alloc_conf: info.alloc_conf.clone(),
        },
        events: recording.events(),
        lost_events: recording.lost_events(),
        duration_ns: if lacks_times { 0 } else { recording.end_ns().saturating_sub(recording.start_ns()) },
        lacks_times,
        notes: recording_notes(info),
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
    let info = recording.info().device(id);
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
        reserved_parts: ReservedBreakdown::from(&device_usage(end, &recorded_settings(recording.info()))),
        segments: end.segments().len() as u64,
        blocks: end.blocks().len() as u64,
        ooms: end.ooms(),
        history_complete: declared_complete
            && starts_empty
            && recording.first_event() == 0
            && recording.lost_events() == 0,
        segment_source: info.map_or(SegmentSource::Recorded, |info| info.segments).name(),
        lacks_requested: info.is_some_and(|info| info.lacks_requested),
        lacks_streams: info.is_some_and(|info| info.lacks_streams),
    }
}
