//! Passes the events of a trace to a sink, in the order of time.

use std::collections::BTreeMap;

use vramscope_trace::{
    Annotation, AnnotationStage, Count, DeviceId, DeviceInfo, Event, Interner, MemoryState, NOT_IN_SOURCE_SCOPE,
    RecordingInfo, SegmentSource, Sink, Site, SiteId, StringId,
};

use super::calls::sites;
use super::device::{DeviceConverter, StartMemory};
use super::segments::rebuild;
use super::trace::{KinetoReader, MemoryRow, SpanKind, Trace, TraceDevice};
use crate::error::ReadError;
use crate::limits::MemoryBudget;
use crate::progress::{ImportPhase, ProgressReporter};
use crate::summary::{ImportSummary, WRITER};

/// PyTorch's device type of ordinary memory of the host.
const CPU_TYPE: i32 = 0;
/// Maximum number of devices of a trace.
const MAX_DEVICES: usize = 256;
/// Maximum distance in time of events whose order is corrected, in nanoseconds.
const MAX_DISORDER_NS: i64 = 100_000;
/// Maximum number of events by which an event is moved to correct the order.
const MAX_MOVED: usize = 64;
/// The highest address and size that are believed.
const MAX_ADDRESS: u64 = 1 << 60;
/// Number of memory events between two calls of the caller's progress function.
const PROGRESS_EVENTS: usize = 1 << 14;

/// The memory events of one device of a trace.
struct DeviceRows<'a> {
    id: DeviceId,
    key: TraceDevice,
    /// In the order of time.
    rows: Vec<(usize, &'a MemoryRow)>,
}

/// Converts a trace that has arrived completely, and passes its events to the sink that `begin`
/// creates. For parameters, result and errors see the crate's public function
/// [`import`](crate::import()).
pub(crate) fn write<S: Sink>(
    reader: KinetoReader,
    name: &str,
    reporter: &mut ProgressReporter<'_>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    let (trace, mut budget) = reader.into_trace()?;
    let limit = |error: crate::limits::LimitExceeded| ReadError::at(0, error.to_string());
    let mut interner = Interner::default();
    let sites = sites(&trace, &mut interner);
    let unseen_scope = interner.string(NOT_IN_SOURCE_SCOPE);
    let unseen = interner.site(Site { scope: unseen_scope, ..Site::default() });
    reporter.report(ImportPhase::Rebuilding, 1, 3, 0)?;
    let (devices, invalid) = devices(&trace)?;
    let mut converters = Vec::new();
    let mut info = RecordingInfo { source: name.to_owned(), writer: WRITER.to_owned(), ..RecordingInfo::default() };
    let mut notes = vec![
        "A profiler trace has the sizes of blocks, not of requests, no streams, and the lines on which functions begin."
            .to_owned(),
    ];
    for device in &devices {
        let (converter, described) = converter(&trace, device, &mut info, &mut budget).map_err(limit)?;
        notes.extend(device_note(&described));
        info.devices.push(described);
        converters.push(converter);
    }
    reporter.report(ImportPhase::Rebuilding, 3, 3, 0)?;
    let annotations = annotations(&trace, &mut interner);
    let first_row = devices.iter().filter_map(|device| device.rows.first()).map(|(_, row)| row.time_ns).min();
    let epoch_ns = first_row.into_iter().chain(annotations.first().map(|one| one.time_ns)).min().unwrap_or(0);
    info.epoch_unix_ns = u64::try_from(trace.base_ns.saturating_add(epoch_ns)).unwrap_or(0);
    let mut sink = begin(&info);
    for definition in interner.take_new() {
        sink.define(&definition);
    }
    let mut writer =
        Writer { sink, epoch_ns, annotations, next_annotation: 0, device: main_device(&devices), events: 0 };
    let mut state = MemoryState::default();
    for (device, converter) in devices.iter().zip(&converters) {
        converter.fill_start(state.device_mut(device.id), unseen);
    }
    if state.devices().any(|(_, device)| device.counters().reserved > 0) {
        writer.sink.replace_state(&state);
    }
    writer.write_rows(&devices, &mut converters, (&sites, unseen), &mut budget, reporter)?;
    let mut contradictions = trace.invalid + invalid;
    for (converter, device) in converters.iter().zip(&info.devices) {
        contradictions += converter.contradictions;
        if converter.unseen_changes > 0 {
            let changes = Count(converter.unseen_changes).of("change", "changes");
            let label = info.device_label(DeviceId(device.device));
            notes.push(format!(
                "{label}: {changes} by threads that the profiler did not follow, or before their events."
            ));
        }
    }
    if trace.invalid + invalid > 0 {
        let events = Count(trace.invalid + invalid).of("invalid event", "invalid events");
        notes.push(format!("Ignored {events}."));
    }
    let summary =
        ImportSummary { info: RecordingInfo { import_notes: notes, ..info }, events: writer.events, contradictions };
    Ok((writer.sink, summary))
}

/// Returns the memory events of each device, in the order of time, and the number of events that
/// are not valid.
fn devices(trace: &Trace) -> Result<(Vec<DeviceRows<'_>>, u64), ReadError> {
    let mut by_key: BTreeMap<(bool, TraceDevice), Vec<(usize, &MemoryRow)>> = BTreeMap::new();
    let mut invalid = 0;
    for (index, row) in trace.memory.iter().enumerate() {
        let end = row.address.checked_add(row.bytes.unsigned_abs());
        if (row.bytes == 0) == (row.failed_bytes == 0) || end.is_none_or(|end| end > MAX_ADDRESS) {
            invalid += 1;
            continue;
        }
        let is_cpu = row.device.0 == CPU_TYPE;
        let key = if is_cpu { (CPU_TYPE, 0) } else { row.device };
        by_key.entry((is_cpu, key)).or_default().push((index, row));
        if by_key.len() > MAX_DEVICES {
            return Err(ReadError::at(0, "a profiler trace with more than 256 devices"));
        }
    }
    let mut devices: Vec<DeviceRows<'_>> = Vec::new();
    for ((is_cpu, key), mut rows) in by_key {
        rows.sort_by_key(|(_, row)| row.time_ns);
        correct_order(&mut rows);
        let number = u16::try_from(key.1).ok().filter(|number| *number < u16::MAX - MAX_DEVICES as u16);
        let is_used = |id: DeviceId, devices: &[DeviceRows<'_>]| devices.iter().any(|device| device.id == id);
        let wanted = DeviceId(number.unwrap_or(0));
        let id = match is_cpu {
            true => DeviceId::CPU,
            false => (wanted.0..).map(DeviceId).find(|id| !is_used(*id, &devices)).unwrap_or(wanted),
        };
        devices.push(DeviceRows { id, key, rows });
    }
    Ok((devices, invalid))
}

/// Corrects the order of events of different threads that have nearly the same time, by the totals
/// of allocated bytes after each.
fn correct_order(rows: &mut [(usize, &MemoryRow)]) {
    let before = |row: &MemoryRow| Some(row.allocated?.wrapping_add_signed(row.bytes.wrapping_neg()));
    for at in 1..rows.len() {
        let Some(total) = rows[at - 1].1.allocated else { continue };
        if before(rows[at].1) == Some(total) {
            continue;
        }
        let near =
            rows[at..].iter().take(MAX_MOVED).take_while(|(_, row)| row.time_ns - rows[at].1.time_ns < MAX_DISORDER_NS);
        if let Some(distance) = near.into_iter().position(|(_, row)| before(row) == Some(total)) {
            rows[at..=at + distance].rotate_right(1);
        }
    }
}

/// Returns the device whose spans the trace's annotations are: the first GPU.
fn main_device(devices: &[DeviceRows<'_>]) -> DeviceId {
    devices.first().map_or(DeviceId(0), |device| device.id)
}

/// Creates the converter of a device, and describes the device.
fn converter(
    trace: &Trace,
    device: &DeviceRows<'_>,
    info: &mut RecordingInfo,
    budget: &mut MemoryBudget,
) -> Result<(DeviceConverter, DeviceInfo), crate::limits::LimitExceeded> {
    let rows: Vec<&MemoryRow> = device.rows.iter().map(|(_, row)| *row).collect();
    let start = StartMemory::new(&rows);
    let is_cpu = device.key.0 == CPU_TYPE;
    let properties = trace.gpus.iter().find(|gpu| !is_cpu && gpu.id == device.key.1);
    let mut described = DeviceInfo {
        device: device.id.0,
        name: properties.map(|gpu| gpu.name.clone()).unwrap_or_default(),
        total_bytes: properties.map_or(0, |gpu| gpu.total_bytes),
        history_complete: start.is_empty(),
        lacks_requested: true,
        lacks_streams: true,
        segments: SegmentSource::Unknown,
        ..DeviceInfo::default()
    };
    let rebuilt = if start.is_empty() && !is_cpu { rebuild(&rows) } else { None };
    let converter = match rebuilt {
        Some(segments) => {
            described.segments = SegmentSource::Inferred;
            info.alloc_conf = segments.conf.to_owned();
            DeviceConverter::with_segments(segments)
        }
        None => DeviceConverter::without_segments(&rows, &start, budget)?,
    };
    Ok((converter, described))
}

/// Returns a sentence about the segments of a device.
fn device_note(device: &DeviceInfo) -> Option<String> {
    let id = DeviceId(device.device);
    match device.segments {
        _ if id == DeviceId::CPU => None,
        SegmentSource::Recorded => None,
        SegmentSource::Inferred => {
            Some(format!("Segments of {id} are inferred: the allocator explains the reserved bytes after each event."))
        }
        SegmentSource::Unknown | SegmentSource::Other if device.history_complete => Some(format!(
            "Segments of {id} are unknown: the allocator's rules do not explain the reserved bytes. Ranges of used \
             addresses stand for them."
        )),
        SegmentSource::Unknown | SegmentSource::Other => Some(format!(
            "Segments of {id} are unknown, because memory was allocated before the trace. Ranges of used addresses \
             stand for them; one block without a known address stands for the older memory."
        )),
    }
}

/// One end of a range that the program named.
struct AnnotationRow {
    time_ns: i64,
    stage: AnnotationStage,
    name: StringId,
}

/// Returns the ends of all ranges that the program named, in the order of time.
fn annotations(trace: &Trace, interner: &mut Interner) -> Vec<AnnotationRow> {
    let mut rows = Vec::new();
    for span in trace.spans.iter().filter(|span| span.kind == SpanKind::Annotation) {
        let name = trace.names.get(span.name as usize).map_or("", |name| &**name);
        let name = interner.string(name);
        rows.push(AnnotationRow { time_ns: span.start_ns, stage: AnnotationStage::Begin, name });
        rows.push(AnnotationRow { time_ns: span.end_ns, stage: AnnotationStage::End, name });
    }
    rows.sort_by_key(|row| row.time_ns);
    rows
}

/// A sink with the annotations that it has still to receive.
struct Writer<S> {
    sink: S,
    epoch_ns: i64,
    annotations: Vec<AnnotationRow>,
    next_annotation: usize,
    /// The device of annotations.
    device: DeviceId,
    events: u64,
}

impl<S: Sink> Writer<S> {
    /// Returns the time since the recording's start.
    fn time_ns(&self, time_ns: i64) -> u64 {
        u64::try_from(time_ns.saturating_sub(self.epoch_ns)).unwrap_or(0)
    }

    /// Passes on the annotations up to a time.
    fn write_annotations(&mut self, until_ns: i64) {
        while let Some(row) = self.annotations.get(self.next_annotation).filter(|row| row.time_ns <= until_ns) {
            let annotation = Annotation {
                device: self.device,
                time_ns: self.time_ns(row.time_ns),
                at_event: self.events,
                stage: row.stage,
                name: row.name,
            };
            self.sink.annotation(&annotation);
            self.next_annotation += 1;
        }
    }

    /// Passes on the events of all devices.
    fn write_rows(
        &mut self,
        devices: &[DeviceRows<'_>],
        converters: &mut [DeviceConverter],
        (sites, unseen): (&[SiteId], SiteId),
        budget: &mut MemoryBudget,
        reporter: &mut ProgressReporter<'_>,
    ) -> Result<(), ReadError> {
        let mut order: Vec<(i64, usize, usize)> = Vec::new();
        for (device, of_device) in devices.iter().enumerate() {
            // Corrected events keep the time of the event before, so that times do not decrease.
            let mut latest_ns = i64::MIN;
            for (index, (_, row)) in of_device.rows.iter().enumerate() {
                latest_ns = latest_ns.max(row.time_ns);
                order.push((latest_ns, device, index));
            }
        }
        order.sort_unstable();
        let mut kinds = Vec::new();
        for (done, &(time_ns, device, index)) in order.iter().enumerate() {
            let (number, row) = devices[device].rows[index];
            self.write_annotations(time_ns);
            let site = sites.get(number).copied().unwrap_or_default();
            let converted = converters[device].convert((index, row), (site, unseen), budget, &mut kinds);
            converted.map_err(|error| ReadError::at(0, error.to_string()))?;
            for kind in kinds.drain(..) {
                self.sink.event(&Event { device: devices[device].id, time_ns: self.time_ns(time_ns), kind });
                self.events += 1;
            }
            if done % PROGRESS_EVENTS == 0 {
                reporter.report(ImportPhase::Writing, done as u64, order.len() as u64, done as u64)?;
            }
        }
        self.write_annotations(i64::MAX);
        Ok(reporter.report(ImportPhase::Writing, 1, 1, order.len() as u64)?)
    }
}
