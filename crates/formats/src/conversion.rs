//! Converts the content of a file: passes its events to a sink, in the order of time.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

use vramscope_trace::{Annotation, Count, DeviceId, DeviceInfo, Event, MemoryState, RecordingInfo, Sink};

use crate::error::ReadError;
use crate::limits::Limits;
use crate::progress::{Cancelled, ImportPhase, ProgressReporter};
use crate::rmm;
use crate::sniff::InputFormat;
use crate::summary::{ImportSummary, WRITER};
use crate::timeline;
use crate::torch::annotations;
use crate::torch::json;
use crate::torch::rebuild::{DeviceHistory, SiteInterner};
use crate::torch::snapshot::{AnnotationRow, Snapshot};
use crate::unpack::is_packed;
use crate::unsupported::unsupported_file;

/// Number of events between two calls of the caller's progress function.
const PROGRESS_EVENTS: u64 = 1 << 14;

/// Name of the device whose memory is pinned host memory.
const HOST_NAME: &str = "host (pinned)";
/// Maximum number of devices without events or segments that a recording lists; others are left
/// out. No machine has as many devices, and the recording of a forged file stays small.
const MAX_IDLE_DEVICES: usize = 64;

/// Reads a file that is not a pickle and passes its events to a sink. `bytes` are the whole
/// unpacked file.
pub(crate) fn import_whole<S: Sink>(
    bytes: &[u8],
    format: Option<InputFormat>,
    name: &str,
    limits: &Limits,
    reporter: &mut ProgressReporter<'_>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    match format {
        Some(InputFormat::TorchJson) => {
            let snapshot = json::read(bytes, limits, reporter)?;
            reporter.set_read_bytes(bytes.len() as u64);
            write_snapshot(snapshot, name, reporter, begin)
        }
        Some(InputFormat::MemoryTimeline) => timeline::import(bytes, name, limits, reporter, begin),
        Some(InputFormat::RmmLog) => rmm::import(bytes, name, limits, reporter, begin),
        Some(InputFormat::Recording) => {
            Err(ReadError::at(0, "this is already a vramscope recording: open it without importing"))
        }
        Some(InputFormat::BufferTable) => {
            Err(ReadError::at(0, "this is a table of buffers, not a recording: place them with vramscope pack"))
        }
        _ if is_packed(bytes) => Err(ReadError::at(0, "this file is compressed: decompress it first")),
        _ => Err(ReadError::at(0, unsupported_file(bytes, name))),
    }
}

/// Rebuilds the events of a snapshot and passes them to the sink that `begin` creates.
pub(crate) fn write_snapshot<S: Sink>(
    mut snapshot: Snapshot,
    name: &str,
    reporter: &mut ProgressReporter<'_>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    let mut sites = SiteInterner::new(std::mem::take(&mut snapshot.interner));
    let definitions = std::mem::take(&mut snapshot.definitions);
    let total = snapshot.entries.len() as u64;
    let (mut histories, mut walked) = (Vec::new(), 0);
    for device in snapshot.devices() {
        let mut progress =
            |entries| reporter.report(ImportPhase::Rebuilding, walked + entries, total, walked + entries);
        let history = DeviceHistory::new(&snapshot, device, &mut progress)?;
        walked += history.len;
        histories.push(history);
    }
    let merger = HistoryMerger::new(&snapshot, &histories);
    let mut info = info(&snapshot, &histories, name, &merger);
    let mut sink = begin(&info);
    for definition in &definitions {
        sink.define(definition);
    }
    drop(definitions);
    let (events, contradictions, notes) = merger.merge(histories, &mut sites, &mut sink, reporter)?;
    info.import_notes = notes;
    Ok((sink, ImportSummary { info, events, contradictions }))
}

/// Describes the recording to make from a snapshot: its start time, devices and allocator settings.
fn info(snapshot: &Snapshot, histories: &[DeviceHistory<'_>], name: &str, merger: &HistoryMerger<'_>) -> RecordingInfo {
    let device_info = |history: &DeviceHistory<'_>| DeviceInfo {
        device: history.device,
        name: if DeviceId(history.device) == DeviceId::HOST { HOST_NAME.to_owned() } else { String::new() },
        history_complete: history.is_complete,
        uncertain_events: history.uncertain_entries(),
        ..DeviceInfo::default()
    };
    let mut devices: BTreeMap<u16, DeviceInfo> =
        histories.iter().map(|history| (history.device, device_info(history))).collect();
    // Devices that exist but were never used have no history.
    for device in snapshot.listed_devices().take(MAX_IDLE_DEVICES) {
        let history_complete = !snapshot.settings.overflowed;
        devices.entry(device).or_insert(DeviceInfo { device, history_complete, ..DeviceInfo::default() });
    }
    RecordingInfo {
        source: name.to_owned(),
        writer: WRITER.to_owned(),
        epoch_unix_ns: merger.epoch_unix_ns(),
        alloc_conf: snapshot.settings.alloc_conf(),
        source_settings: snapshot.settings.json.clone(),
        import_notes: Vec::new(),
        lacks_times: !snapshot.has_times && !snapshot.entries.is_empty(),
        devices: devices.into_values().collect(),
    }
}

/// Merges the devices' histories and the annotations of a snapshot into one sequence, ordered by
/// time.
struct HistoryMerger<'a> {
    snapshot: &'a Snapshot,
    /// Time of the earliest event, in microseconds since 1970.
    epoch_us: i64,
    /// The annotations to write, sorted by time.
    annotations: Vec<AnnotationRow>,
    /// Number of annotations that were dropped because they end before the history begins.
    dropped_annotations: usize,
}

impl<'a> HistoryMerger<'a> {
    fn new(snapshot: &'a Snapshot, histories: &[DeviceHistory<'_>]) -> Self {
        let first_event_us = histories.iter().filter_map(|history| history.earliest_us).min();
        let first_annotation_us = snapshot.annotations.iter().map(|row| row.time_us).min();
        let epoch_us = first_event_us.or(first_annotation_us).unwrap_or(0);
        let (annotations, dropped_annotations) = if snapshot.has_times || first_event_us.is_none() {
            annotations::since(&snapshot.annotations, epoch_us)
        } else {
            // Events without times have no order relative to the annotations.
            (Vec::new(), snapshot.annotations.len())
        };
        Self { snapshot, epoch_us, annotations, dropped_annotations }
    }

    /// Returns the time of the recording's start in nanoseconds since 1970; 0 if nothing in the
    /// snapshot has a time.
    fn epoch_unix_ns(&self) -> u64 {
        let has_times = self.snapshot.has_times || !self.annotations.is_empty();
        if has_times { u64::try_from(self.epoch_us).unwrap_or(0).saturating_mul(1000) } else { 0 }
    }

    /// Converts microseconds since 1970 to nanoseconds since the earliest event; 0 for earlier
    /// times.
    fn time_ns(&self, time_us: i64) -> u64 {
        u64::try_from(time_us.saturating_sub(self.epoch_us)).unwrap_or(0).saturating_mul(1000)
    }

    /// Passes the initial state, all events and the annotations to the sink, ordered by time.
    /// Returns the number of events, the number of the snapshot's values that are invalid or
    /// contradict others, and messages for the user; fails if the caller stops the import.
    fn merge<S: Sink>(
        &self,
        mut histories: Vec<DeviceHistory<'_>>,
        sites: &mut SiteInterner,
        sink: &mut S,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(u64, u64, Vec<String>), Cancelled> {
        let total = histories.iter().map(|history| history.len).sum();
        if histories.iter().any(|history| !history.starts_empty()) {
            let mut state = MemoryState::default();
            for history in &histories {
                history.fill_start(state.device_mut(DeviceId(history.device)), sites);
            }
            define_new(sites, sink);
            sink.replace_state(&state);
        }
        let mut annotations = self.annotations.iter().peekable();
        let mut events = 0;
        let mut next_events: BinaryHeap<_> = (histories.iter().enumerate())
            .filter_map(|(index, history)| history.next_time_us().map(|time_us| Reverse((time_us, index))))
            .collect();
        while let Some(mut next) = next_events.peek_mut() {
            let Reverse((time_us, index)) = *next;
            let history = &mut histories[index];
            while let Some(row) = annotations.next_if(|row| row.time_us <= time_us) {
                sink.annotation(&self.annotation(row, events));
            }
            if let Some(kind) = history.next_event(sites) {
                define_new(sites, sink);
                let device = DeviceId(history.device);
                sink.event(&Event { device, time_ns: self.time_ns(time_us), kind });
                events += 1;
                if events % PROGRESS_EVENTS == 0 {
                    reporter.report(ImportPhase::Writing, events, total, events)?;
                }
            }
            match history.next_time_us() {
                Some(time_us) => *next = Reverse((time_us, index)),
                None => drop(PeekMut::pop(next)),
            }
        }
        for row in annotations {
            sink.annotation(&self.annotation(row, events));
        }
        reporter.report(ImportPhase::Writing, 1, 1, events)?;
        let contradictions =
            histories.iter().map(DeviceHistory::contradictions).sum::<u64>() + self.snapshot.invalid_values;
        Ok((events, contradictions, self.notes(&histories)))
    }

    /// Converts an annotation of the snapshot to one of the recording. `at_event` is the number of
    /// events that precede it.
    fn annotation(&self, row: &AnnotationRow, at_event: u64) -> Annotation {
        Annotation {
            device: DeviceId(row.device),
            time_ns: self.time_ns(row.time_us),
            at_event,
            stage: row.stage,
            name: row.name,
        }
    }

    /// Returns sentences for the user about missing, assumed or ignored parts. Call this after the
    /// last event.
    fn notes(&self, histories: &[DeviceHistory<'_>]) -> Vec<String> {
        let snapshot = self.snapshot;
        let mut notes = Vec::new();
        for history in histories {
            history.add_notes(&mut notes);
        }
        if !snapshot.has_segments {
            notes.push("The snapshot lists no segments, so the end of its history could not be verified.".to_owned());
        }
        if !snapshot.settings.present {
            notes.push("The snapshot lacks the allocator settings; the defaults were assumed.".to_owned());
        }
        if !snapshot.has_times && !snapshot.entries.is_empty() {
            notes.push("The entries have no times; they are shown one microsecond apart.".to_owned());
        }
        if self.dropped_annotations > 0 {
            let annotations = Count(self.dropped_annotations as u64).of("annotation", "annotations");
            notes.push(format!("Ignored {annotations} from before the history."));
        }
        if snapshot.has_times && snapshot.untimed > 0 {
            let entries = Count(snapshot.untimed).of("entry has", "entries have");
            notes.push(format!("{entries} no time and got the time of the previous entry."));
        }
        if let Some(first) = snapshot.first_invalid {
            let values = Count(snapshot.invalid_values).of("invalid value", "invalid values");
            notes.push(format!("Ignored {values} of the snapshot; the first problem: {first}."));
        }
        notes
    }
}

/// Passes to the sink all definitions (sites, strings, frames, stacks) that were interned since the
/// last call of this function.
fn define_new(sites: &mut SiteInterner, sink: &mut impl Sink) {
    for definition in sites.interner.take_new() {
        sink.define(&definition);
    }
}
