//! Writes a recording as a PyTorch memory snapshot, as `torch.cuda.memory._snapshot()` returns it,
//! as a pickle or as JSON. PyTorch's own tools (`torch.cuda._memory_viz`, the memory_viz page) and
//! others read snapshots.
//!
//! | snapshot | source |
//! | --- | --- |
//! | `device_traces` | the events, one list a device; size and stream of a free from its block |
//! | `segments` | the memory state at the end |
//! | `host_traces`, `host_segments` | the same for pinned host memory, if the recording has any |
//! | `allocator_settings` | the settings of the imported snapshot, else the recording's settings |
//! | `external_annotations` | annotations, and marks that begin or end an interval |
//!
//! Blocks that are older than the first event have no entry, as in PyTorch's snapshots. A snapshot
//! cannot represent memory samples and gaps, which are left out.
//!
//! Reading order: `snapshot_writer`, `trace`, `segments`.

mod json;
mod last_requests;
mod pickle;
mod segments;
mod settings;
mod snapshot_writer;
mod trace;

use std::collections::HashMap;
use std::io::{BufWriter, Write};

use vramscope_trace::{
    Annotation, AnnotationStage, Category, DeviceId, DeviceInfo, DeviceState, Event, EventKind, FormatError, Recording,
    Replay, SiteId,
};

use self::json::JsonWriter;
use self::last_requests::LastRequests;
use self::pickle::PickleWriter;
use self::snapshot_writer::SnapshotWriter;
use self::trace::TraceWriter;
use super::error::{ExportError, Progress, Result};
use super::walk::{for_each_event, for_each_event_and_relabels};

/// The maximum number of devices that PyTorch supports (`C10_COMPILE_TIME_MAX_GPUS`). The export
/// fails for a recording with device 120 or higher; the first device has number 0.
const MAX_DEVICES: u16 = 120;
/// Size of the buffer in which the snapshot's bytes are collected before they are written, in
/// bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes a recording as a PyTorch snapshot in JSON.
///
/// ```
/// use vramscope_formats::export;
///
/// # let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
/// # encoder.flush();
/// # let mut recording = vramscope_trace::Recording::new();
/// # for chunk in encoder.take_output() {
/// #     recording.push(&chunk.bytes).unwrap();
/// # }
/// let mut snapshot = Vec::new();
/// export::memory_viz_json(&recording, &mut snapshot, &mut |_done, _total| {}).unwrap();
/// assert!(snapshot.starts_with(b"{\"device_traces\":["));
/// ```
///
/// # Errors
/// If the recording cannot be read, the output cannot be written, or a device number is higher than
/// PyTorch supports.
pub fn memory_viz_json(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    write(recording, &mut JsonWriter::new(BufWriter::with_capacity(BUFFER_BYTES, out)), progress)
}

/// Writes a recording as a pickled PyTorch snapshot.
///
/// ```
/// use vramscope_formats::export;
///
/// # let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
/// # encoder.flush();
/// # let mut recording = vramscope_trace::Recording::new();
/// # for chunk in encoder.take_output() {
/// #     recording.push(&chunk.bytes).unwrap();
/// # }
/// let mut snapshot = Vec::new();
/// export::memory_viz_pickle(&recording, &mut snapshot, &mut |_done, _total| {}).unwrap();
/// assert!(snapshot.starts_with(b"\x80\x02}"));
/// ```
///
/// # Errors
/// If the recording cannot be read, the output cannot be written, or a device number is higher than
/// PyTorch supports.
pub fn memory_viz_pickle(
    recording: &Recording,
    out: &mut dyn Write,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    write(recording, &mut PickleWriter::new(BufWriter::with_capacity(BUFFER_BYTES, out))?, progress)
}

/// Writes a recording as a PyTorch snapshot to `out`, which determines whether it becomes JSON or a
/// pickle.
fn write(recording: &Recording, out: &mut impl SnapshotWriter, progress: Progress<'_>) -> Result {
    let devices = device_count(recording)?;
    let definitions = recording.definitions();
    let has_category = |id| definitions.site(SiteId(id)).category != Category::Unknown;
    let has_categories = (1..=definitions.site_count() as u32).any(has_category);
    let trace_writer = TraceWriter {
        definitions,
        epoch_us: recording.info().epoch_unix_ns / 1000,
        has_categories,
        labels: if has_categories { last_labels(recording)? } else { HashMap::new() },
    };
    let mut last_requests = Vec::new();
    let mut progress = CombinedProgress::new(recording, progress);
    out.begin_dict()?;
    // Written first, because `segments` needs sizes that are collected from the events.
    out.key("device_traces")?;
    out.begin_list()?;
    for device in 0..devices {
        last_requests.push(write_trace(recording, &trace_writer, DeviceId(device), out, &mut progress)?);
    }
    out.end_list()?;
    out.key("segments")?;
    out.begin_list()?;
    for (id, device) in recording.end_state().devices() {
        if let Some(requests) = last_requests.get(usize::from(id.0)) {
            segments::write(out, definitions, id, device, requests)?;
        }
    }
    out.end_list()?;
    if let Some(host) = recording.end_state().device(DeviceId::HOST) {
        out.key("host_traces")?;
        let requests = write_trace(recording, &trace_writer, DeviceId::HOST, out, &mut progress)?;
        out.key("host_segments")?;
        out.begin_list()?;
        segments::write(out, definitions, DeviceId::HOST, host, &requests)?;
        out.end_list()?;
    }
    out.key("allocator_settings")?;
    settings::write(out, recording.info(), has_overflowed(recording)?)?;
    out.key("external_annotations")?;
    write_annotations(recording, &trace_writer, out)?;
    out.end_dict()?;
    out.finish()?;
    Ok(())
}

/// Returns the site of the last relabel of each relabeled allocation, by device and index of its
/// event (from 0).
fn last_labels(recording: &Recording) -> Result<HashMap<(DeviceId, u64), SiteId>> {
    let mut labels = HashMap::new();
    for_each_event_and_relabels(recording, &mut |_, _| {}, |before, _, _, relabels| {
        for relabel in relabels {
            let block = before.device(relabel.device).and_then(|device| device.block(relabel.address));
            if let Some(block) = block {
                labels.insert((relabel.device, block.since_event), relabel.site);
            }
        }
        Ok::<_, ExportError>(())
    })?;
    // The end state includes relabels after the last event.
    for (id, device) in recording.end_state().devices() {
        let relabeled = device.blocks().filter(|block| device.allocation_site(block) != block.site);
        labels.extend(relabeled.map(|block| ((id, block.since_event), block.site)));
    }
    Ok(labels)
}

/// Returns true if at least one event of the recording belongs to the device.
fn has_events(device: &DeviceState) -> bool {
    device.events() > 0
}

/// Turns several walks over the events, one for each device with events, into one progress report.
struct CombinedProgress<'a> {
    progress: Progress<'a>,
    /// Number of walks that have begun.
    started_walks: u64,
    /// Number of all walks.
    walks: u64,
}

impl<'a> CombinedProgress<'a> {
    fn new(recording: &Recording, progress: Progress<'a>) -> Self {
        let devices = recording.end_state().devices().filter(|(_, device)| has_events(device));
        Self { progress, started_walks: 0, walks: devices.count() as u64 }
    }

    /// Returns the progress callback for the next walk; it reports the walks before as done.
    fn next(&mut self) -> impl FnMut(u64, u64) {
        let (before, all) = (self.started_walks, self.walks);
        self.started_walks += 1;
        move |done, total| (self.progress)(before * total + done, all * total)
    }
}

/// Returns the number of devices that the snapshot lists: the highest device number of the
/// recording, without the host, plus 1. Fails if that exceeds [`MAX_DEVICES`].
fn device_count(recording: &Recording) -> Result<u16> {
    let declared = recording.info().devices.iter().map(|info| info.device);
    let last =
        declared.chain(recording.devices().map(|id| id.0)).filter(|&device| DeviceId(device) != DeviceId::HOST).max();
    let Some(last) = last else { return Ok(0) };
    if last >= MAX_DEVICES {
        let problem = format!("device {last} cannot be exported: PyTorch supports devices 0 to {}", MAX_DEVICES - 1);
        return Err(ExportError::Unsupported(problem));
    }
    Ok(last + 1)
}

/// Returns true if the snapshot must be marked as overflowed: the recording has lost events, or a
/// device has no segments at the recording's first event although its history is incomplete.
fn has_overflowed(recording: &Recording) -> Result<bool, FormatError> {
    let mut replay = Replay::new();
    let begin = replay.seek(recording, recording.first_event())?;
    let began_empty = |id| begin.device(id).is_none_or(|device| device.segments().len() == 0);
    let overflowed = |info: &DeviceInfo| !info.history_complete && began_empty(DeviceId(info.device));
    Ok(recording.lost_events() > 0 || recording.info().devices.iter().any(overflowed))
}

/// Writes the list of history entries of one device. Returns the last requested sizes of the blocks
/// that are free at the end of the recording.
fn write_trace(
    recording: &Recording,
    trace_writer: &TraceWriter<'_>,
    id: DeviceId,
    out: &mut impl SnapshotWriter,
    progress: &mut CombinedProgress<'_>,
) -> Result<LastRequests> {
    let mut requests = LastRequests::default();
    let mut next = None;
    out.begin_list()?;
    if !recording.end_state().device(id).is_some_and(has_events) {
        out.end_list()?;
        return Ok(requests);
    }
    for_each_event(recording, &mut progress.next(), |before, number, event| {
        let before = before.device(id);
        // At the beginning and after a gap, the history of free blocks is unknown.
        if next != Some(number) {
            requests = LastRequests::new(before);
        }
        next = (!matches!(event.kind, EventKind::Gap { .. })).then_some(number + 1);
        if event.device == id {
            trace_writer.write(out, event, number, before)?;
            requests.apply(&event.kind, before);
        }
        Ok::<_, ExportError>(())
    })?;
    out.end_list()?;
    Ok(requests)
}

/// Returns one value for each of `recording.annotations()`, in that order: true if the annotation
/// repeats a mark event, which is written as a history entry; false if it is not among the events.
fn are_entries(recording: &Recording) -> Result<Vec<bool>, FormatError> {
    let annotations = recording.annotations();
    let mut in_order: Vec<usize> = (0..annotations.len()).collect();
    in_order.sort_unstable_by_key(|&index| annotations[index].at_event);
    let mut are_entries = vec![false; annotations.len()];
    let mut replay = Replay::new();
    for index in in_order {
        let Annotation { device, time_ns, at_event, stage, name } = annotations[index];
        let is_mark = |event: &Event| {
            let named =
                matches!(event.kind, EventKind::Mark { stage: AnnotationStage::Instant, name: its, .. } if its == name);
            named && event.device == device && event.time_ns == time_ns
        };
        are_entries[index] =
            stage == AnnotationStage::Instant && replay.event(recording, at_event)?.as_ref().is_some_and(is_mark);
    }
    Ok(are_entries)
}

/// Writes the list `external_annotations`: all annotations that are not already history entries.
fn write_annotations(recording: &Recording, trace_writer: &TraceWriter<'_>, out: &mut impl SnapshotWriter) -> Result {
    out.begin_list()?;
    for (annotation, is_entry) in recording.annotations().iter().zip(are_entries(recording)?) {
        if is_entry {
            continue;
        }
        let Annotation { device, time_ns, stage, name, .. } = *annotation;
        let stage = match stage {
            AnnotationStage::Begin => "START",
            AnnotationStage::End => "END",
            AnnotationStage::Instant => "INSTANT",
        };
        out.begin_dict()?;
        out.constant_field("stage", stage)?;
        out.key("name")?;
        out.string(trace_writer.definitions, name)?;
        out.number_field("device", device.0)?;
        out.number_field("time_us", trace_writer.time_us(time_ns))?;
        out.end_dict()?;
    }
    out.end_list()?;
    Ok(())
}
