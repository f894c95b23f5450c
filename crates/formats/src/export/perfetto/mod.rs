//! Writes a recording as a Perfetto trace for [ui.perfetto.dev](https://ui.perfetto.dev).
//!
//! A device is shown as a process with these tracks: its counters in bytes, exact at every event;
//! failed requests; marks and annotations; and its allocations grouped by site, each a slice from
//! its allocation until its block is free again. A slice without an end was live at the end of the
//! recording. Slices of one track must be nested, but lifetimes are not. The slices of a site
//! therefore use as many tracks as it has allocations at a time, and the page merges these tracks.
//!
//! The trace is written while the recording is read, so memory is bounded. The trace contains the
//! number of spans and allocations that are left out because of limits.

mod groups;
mod marks;
mod proto;
mod texts;
mod writer;

use std::collections::BTreeMap;
use std::io::Write;

use vramscope_trace::{Annotation, Counters, DeviceId, DeviceState, Event, EventKind, MemorySample, Recording, Replay};

use self::groups::AllocationSlices;
use self::marks::Mark;
use self::proto::{INSTANT, ORDER_EXPLICIT, ProcessDescriptor, TrackDescriptor};
use self::texts::{Argument, Text};
use self::writer::{TraceWriter, get_or_create, rank};
use super::error::{ExportError, Progress, Result};
use super::steps::{Moment, Step, for_each_step};

/// Writes a recording as a Perfetto trace.
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
/// let mut trace = Vec::new();
/// export::perfetto(&recording, &mut trace, &mut |_done, _total| {}).unwrap();
/// assert!(!trace.is_empty());
/// ```
///
/// # Errors
/// If the recording cannot be read or the output cannot be written.
pub fn perfetto(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    let mut trace = TraceWriter::create(recording, out)?;
    let largest_sites = groups::find_largest_sites(recording)?;
    let mut devices = Devices { largest_sites, devices: BTreeMap::new() };
    let mut replay = Replay::new();
    let begin = Moment { event: recording.first_event(), time_ns: recording.start_ns() };
    for (id, state) in replay.seek(recording, begin.event)?.devices() {
        devices.get(id, &mut trace, recording)?.write_counters(&mut trace, begin, state)?;
    }
    for id in recording.devices() {
        devices.get(id, &mut trace, recording)?;
    }
    let mut marks: BTreeMap<DeviceId, Vec<Mark>> = BTreeMap::new();
    for_each_step(recording, progress, |step| match step {
        Step::Began(lifetime) => {
            devices.get(lifetime.device, &mut trace, recording)?.allocations.begin(&mut trace, lifetime)
        }
        Step::Relabeled(lifetime, time_ns) => {
            devices.get(lifetime.device, &mut trace, recording)?.allocations.relabel(&mut trace, lifetime, time_ns)
        }
        Step::Ended(lifetime, _) => {
            devices.get(lifetime.device, &mut trace, recording)?.allocations.end_slice(&mut trace, lifetime)
        }
        Step::Event { moment, event, after, .. } => {
            let device = devices.get(event.device, &mut trace, recording)?;
            device.write_counters(&mut trace, moment, after)?;
            // Marks and annotations are written at the end, because nesting a span requires its
            // end.
            if let EventKind::Mark { stage, name, .. } = event.kind {
                let mark = Mark { time_ns: event.time_ns, event: moment.event, stage, name };
                marks.entry(event.device).or_default().push(mark);
            }
            device.write_event(&mut trace, moment, &event)
        }
        Step::Annotation(&Annotation { device, time_ns, at_event, stage, name }) => {
            marks.entry(device).or_default().push(Mark { time_ns, event: at_event, stage, name });
            Ok(())
        }
    })?;
    for (id, marks) in marks {
        let process = devices.get(id, &mut trace, recording)?.process;
        marks::write(recording, marks, process, &mut trace)?;
    }
    let end = Moment { event: recording.end_event(), time_ns: recording.end_ns() };
    devices.devices.into_values().try_for_each(|device| device.allocations.finish(&mut trace, end))
}

/// The tracks of the devices that have appeared in the recording so far, and the sites whose
/// allocations get a row of their own.
struct Devices {
    largest_sites: groups::LargestSites,
    devices: BTreeMap<DeviceId, Device>,
}

impl Devices {
    /// Returns the tracks of a device; writes them to the trace first if the device is new.
    fn get(&mut self, id: DeviceId, trace: &mut TraceWriter<'_>, recording: &Recording) -> Result<&mut Device> {
        // Not the entry API, which supports no creation of a value that may fail.
        if !self.devices.contains_key(&id) {
            self.devices.insert(id, Device::new(id, trace, recording, self.largest_sites.of_device(id))?);
        }
        Ok(self.devices.get_mut(&id).expect("the device was just inserted"))
    }
}

/// A counter in bytes: its name in the trace, and the function that reads its value.
type NamedCounter<T> = (&'static str, fn(&T) -> u64);

/// The counters of a device that are drawn, in the order of their tracks, all in bytes.
const COUNTERS: [NamedCounter<Counters>; 4] = [
    ("reserved bytes", |counters| counters.reserved),
    ("active bytes", |counters| counters.active),
    ("allocated bytes", |counters| counters.allocated),
    ("requested bytes", |counters| counters.requested),
];

/// The counters of a memory sample that are drawn, in the order of their tracks, all in bytes.
const SAMPLES: [NamedCounter<MemorySample>; 3] = [
    ("used by this process outside the allocator", |sample| sample.used_by_context),
    ("used by other processes", |sample| sample.used_by_others),
    ("free on the device", |sample| sample.free),
];

/// The tracks of one device in a Perfetto trace, with the counter values that were written last.
struct Device {
    process: u64,
    /// The track and last value of each counter.
    counters: [(u64, Option<u64>); COUNTERS.len()],
    /// Tracks of the memory samples; `None` before the first sample.
    samples: Option<[u64; SAMPLES.len()]>,
    /// Track of failed requests; `None` before the first.
    out_of_memory: Option<u64>,
    /// Track of gaps; `None` before the first.
    missing_events: Option<u64>,
    allocations: AllocationSlices,
}

impl Device {
    fn new(
        id: DeviceId,
        trace: &mut TraceWriter<'_>,
        recording: &Recording,
        largest: groups::GroupedSites,
    ) -> Result<Self> {
        let name = recording.info().device_label(id);
        let process = trace.track(TrackDescriptor {
            // Process 0 is the idle process.
            process: Some(ProcessDescriptor { pid: Some(i32::from(id.0) + 1), process_name: Some(name) }),
            child_ordering: Some(ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        })?;
        let mut counters = [(0, None); COUNTERS.len()];
        for (at, (name, _)) in COUNTERS.iter().enumerate() {
            counters[at].0 = trace.counter_under(process, name, rank::COUNTERS + at as i32, "allocator")?;
        }
        let parent = trace.track_under(process, "allocations by site", rank::ALLOCATIONS)?;
        let allocations = AllocationSlices::new(process, parent, largest);
        Ok(Self { process, counters, samples: None, out_of_memory: None, missing_events: None, allocations })
    }

    /// Writes the device's counters whose values differ from the last written values.
    fn write_counters(&mut self, trace: &mut TraceWriter<'_>, moment: Moment, state: &DeviceState) -> Result {
        let now = state.counters();
        for ((track, last), (_, of)) in self.counters.iter_mut().zip(COUNTERS) {
            let value = of(&now);
            if last.replace(value) != Some(value) {
                trace.write_counter(*track, moment.time_ns, value)?;
            }
        }
        Ok(())
    }

    /// Writes a failed request, a memory sample or a gap to its track; other kinds of events are
    /// ignored, because counters and slices show them.
    fn write_event(&mut self, trace: &mut TraceWriter<'_>, moment: Moment, event: &Event) -> Result {
        let process = self.process;
        match event.kind {
            EventKind::OutOfMemory { requested, device_free, stream, site } => {
                let track = get_or_create(&mut self.out_of_memory, || {
                    trace.track_under(process, "out of memory", rank::OUT_OF_MEMORY)
                })?;
                let mut arguments = vec![
                    ("event", Argument::Number(moment.event)),
                    ("requested", Argument::Number(requested)),
                    ("device_free", Argument::Number(device_free)),
                    ("stream", Argument::Pointer(stream.0)),
                ];
                arguments.extend(trace.texts.site_arguments(site));
                trace.write_named(INSTANT, (track, moment.time_ns), Text::Constant("out of memory"), &arguments)
            }
            EventKind::MemorySample { used_by_context, used_by_others, free } => {
                let sample = MemorySample { used_by_context, used_by_others, free };
                let tracks = get_or_create(&mut self.samples, || {
                    let mut tracks = [0; SAMPLES.len()];
                    for (at, (name, _)) in SAMPLES.iter().enumerate() {
                        tracks[at] = trace.counter_under(process, name, rank::SAMPLES + at as i32, "device")?;
                    }
                    Ok(tracks)
                })?;
                let values = tracks.into_iter().zip(SAMPLES.map(|(_, of)| of(&sample)));
                values.into_iter().try_for_each(|(track, value)| trace.write_counter(track, moment.time_ns, value))
            }
            EventKind::Gap { lost } => {
                let track = get_or_create(&mut self.missing_events, || {
                    trace.track_under(process, "missing events", rank::MISSING_EVENTS)
                })?;
                let arguments = [("event", Argument::Number(moment.event)), ("lost", Argument::Number(lost))];
                trace.write_named(INSTANT, (track, moment.time_ns), Text::Constant("missing events"), &arguments)
            }
            _ => Ok(()),
        }
    }
}
