//! A recording as a PyTorch memory snapshot: what `torch.cuda.memory._snapshot()` returns, as a pickle or as JSON, for PyTorch's own
//! tools (`torch.cuda._memory_viz`, the memory_viz page) and whatever else reads snapshots.
//!
//! | snapshot | from |
//! | --- | --- |
//! | `device_traces` | the events, one list a device; a free's size and stream from its block |
//! | `segments` | the memory state at the end; blocks that were there before the first event have no entry, as in PyTorch's |
//! | `host_traces`, `host_segments` | the same of pinned memory of the host, where the recording has any |
//! | `allocator_settings` | those of the snapshot that the recording was made from, else what its own say |
//! | `external_annotations` | annotations, and marks that begin or end something |
//!
//! A snapshot has no place for memory samples and gaps: they are left out. Reading order: `notation`, `trace`, `segments`.

mod json;
mod leftover;
mod notation;
mod pickle;
mod segments;
mod settings;
mod trace;

use std::io::{BufWriter, Write};

use vramscope_trace::{
    Annotation, Category, DeviceId, DeviceInfo, DeviceState, Event, EventKind, FormatError, Recording, Replay, SiteId,
    Stage,
};

use self::json::Json;
use self::leftover::Leftover;
use self::notation::Notation;
use self::pickle::Pickle;
use self::trace::Traces;
use super::{ExportError, Progress, walk};

/// How many devices a snapshot can have: PyTorch is built for no more (`C10_COMPILE_TIME_MAX_GPUS`).
const MAX_DEVICES: u16 = 120;
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 16;

/// Writes the recording as a PyTorch snapshot in JSON.
///
/// # Errors
/// Where the recording cannot be read or the output not written, and where a device's number is one that PyTorch cannot have.
pub fn memory_viz_json(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    write(recording, &mut Json::new(BufWriter::with_capacity(BUFFER_BYTES, out)), progress)
}

/// Writes the recording as a pickled PyTorch snapshot.
///
/// # Errors
/// Where the recording cannot be read or the output not written, and where a device's number is one that PyTorch cannot have.
pub fn memory_viz_pickle(
    recording: &Recording,
    out: &mut dyn Write,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    write(recording, &mut Pickle::new(BufWriter::with_capacity(BUFFER_BYTES, out))?, progress)
}

fn write(recording: &Recording, out: &mut impl Notation, progress: Progress<'_>) -> Result<(), ExportError> {
    let devices = device_count(recording)?;
    let definitions = recording.definitions();
    let has_category = |id| definitions.site(SiteId(id)).category != Category::Unknown;
    let traces = Traces {
        definitions,
        epoch_us: recording.info().epoch_unix_ns / 1000,
        has_categories: (1..=definitions.site_count() as u32).any(has_category),
    };
    let mut leftovers = Vec::new();
    let mut passes = Passes::of(recording, progress);
    out.begin_dict()?;
    // Before the segments, in which stands what only the events tell.
    out.key("device_traces")?;
    out.begin_list()?;
    for device in 0..devices {
        leftovers.push(write_trace(recording, &traces, DeviceId(device), out, &mut passes)?);
    }
    out.end_list()?;
    out.key("segments")?;
    out.begin_list()?;
    for (id, device) in recording.end_state().devices() {
        if let Some(leftover) = leftovers.get(usize::from(id.0)) {
            segments::write(out, definitions, id, device, leftover)?;
        }
    }
    out.end_list()?;
    if let Some(host) = recording.end_state().device(DeviceId::HOST) {
        out.key("host_traces")?;
        let leftover = write_trace(recording, &traces, DeviceId::HOST, out, &mut passes)?;
        out.key("host_segments")?;
        out.begin_list()?;
        segments::write(out, definitions, DeviceId::HOST, host, &leftover)?;
        out.end_list()?;
    }
    out.key("allocator_settings")?;
    settings::write(out, recording.info(), has_overflowed(recording)?)?;
    out.key("external_annotations")?;
    write_annotations(recording, &traces, out)?;
    out.end_dict()?;
    out.finish()?;
    Ok(())
}

fn has_events(device: &DeviceState) -> bool {
    device.events() > 0
}

/// The walks over the events: one for each device that has any.
struct Passes<'a> {
    progress: Progress<'a>,
    begun: u64,
    all: u64,
}

impl<'a> Passes<'a> {
    fn of(recording: &Recording, progress: Progress<'a>) -> Self {
        let devices = recording.end_state().devices().filter(|(_, device)| has_events(device));
        Self { progress, begun: 0, all: devices.count() as u64 }
    }

    /// What the next walk tells of its progress to; it reports that of all.
    fn next(&mut self) -> impl FnMut(u64, u64) {
        let (before, all) = (self.begun, self.all);
        self.begun += 1;
        move |done, total| (self.progress)(before * total + done, all * total)
    }
}

/// How many devices the snapshot has: all up to the last that the recording speaks of; the host is none.
fn device_count(recording: &Recording) -> Result<u16, ExportError> {
    let declared = recording.info().devices.iter().map(|info| info.device);
    let last =
        declared.chain(recording.devices().map(|id| id.0)).filter(|&device| DeviceId(device) != DeviceId::HOST).max();
    let Some(last) = last else { return Ok(0) };
    if last >= MAX_DEVICES {
        let what = format!("there is a device number {last}, and PyTorch knows none above {}", MAX_DEVICES - 1);
        return Err(ExportError::Unfit(what));
    }
    Ok(last + 1)
}

/// Whether a history has lost its beginning and only its owner knew: events are missing, though nothing was there before the first.
fn has_overflowed(recording: &Recording) -> Result<bool, FormatError> {
    let mut replay = Replay::new();
    let begin = replay.seek(recording, recording.first_event())?;
    let began_empty = |id| begin.device(id).is_none_or(|device| device.segments().len() == 0);
    let overflowed = |info: &DeviceInfo| !info.history_complete && began_empty(DeviceId(info.device));
    Ok(recording.lost_events() > 0 || recording.info().devices.iter().any(overflowed))
}

/// Writes the list of one device's entries, and gives what its free blocks remember at the end.
fn write_trace(
    recording: &Recording,
    traces: &Traces<'_>,
    id: DeviceId,
    out: &mut impl Notation,
    passes: &mut Passes<'_>,
) -> Result<Leftover, ExportError> {
    let mut leftover = Leftover::default();
    let mut next = None;
    out.begin_list()?;
    if !recording.end_state().device(id).is_some_and(has_events) {
        out.end_list()?;
        return Ok(leftover);
    }
    walk(recording, &mut passes.next(), |before, number, event| {
        let before = before.device(id);
        // At the beginning, and behind a gap, of the free blocks only what the full state says is known.
        if next != Some(number) {
            leftover = Leftover::new(before);
        }
        next = (!matches!(event.kind, EventKind::Gap { .. })).then_some(number + 1);
        if event.device == id {
            traces.write(out, event, before)?;
            leftover.apply(&event.kind, before);
        }
        Ok::<_, ExportError>(())
    })?;
    out.end_list()?;
    Ok(leftover)
}

/// Of each annotation, whether it is one of the marks among the events that have their entry. Events are looked up in their own order: that of
/// times may lead from chunk to chunk and back.
fn are_entries(recording: &Recording) -> Result<Vec<bool>, FormatError> {
    let annotations = recording.annotations();
    let mut in_order: Vec<usize> = (0..annotations.len()).collect();
    in_order.sort_unstable_by_key(|&index| annotations[index].at_event);
    let mut are_entries = vec![false; annotations.len()];
    let mut replay = Replay::new();
    for index in in_order {
        let Annotation { device, time_ns, at_event, stage, name } = annotations[index];
        let is_mark = |event: &Event| {
            let named = matches!(event.kind, EventKind::Mark { stage: Stage::Instant, name: its, .. } if its == name);
            named && event.device == device && event.time_ns == time_ns
        };
        are_entries[index] =
            stage == Stage::Instant && replay.event(recording, at_event)?.as_ref().is_some_and(is_mark);
    }
    Ok(are_entries)
}

/// Writes what stands beside the events, and the marks among them for which a history has no entry.
fn write_annotations(recording: &Recording, traces: &Traces<'_>, out: &mut impl Notation) -> Result<(), ExportError> {
    out.begin_list()?;
    for (annotation, is_entry) in recording.annotations().iter().zip(are_entries(recording)?) {
        if is_entry {
            continue;
        }
        let Annotation { device, time_ns, stage, name, .. } = *annotation;
        let stage = match stage {
            Stage::Begin => "START",
            Stage::End => "END",
            Stage::Instant => "INSTANT",
        };
        out.begin_dict()?;
        out.word_field("stage", stage)?;
        out.key("name")?;
        out.string(traces.definitions, name)?;
        out.number_field("device", device.0)?;
        out.number_field("time_us", traces.time_us(time_ns))?;
        out.end_dict()?;
    }
    out.end_list()?;
    Ok(())
}
