//! A recording as a Perfetto trace, which [ui.perfetto.dev](https://ui.perfetto.dev) opens.
//!
//! A device is a process. Under it stand its counters, in bytes and to the event; its allocations, a slice each from when it was
//! allocated until its block was free again, grouped by site; marks and annotations; failed requests. A slice that does not end was
//! there when the recording ended. Slices of one track have to be nested, and lifetimes are not: the slices of a site lie on as many
//! tracks as it has allocations at a time, which the page shows as one.
//!
//! The trace is written as the recording is walked, so that memory is bounded; what is not shown is told in the trace itself.

mod groups;
mod marks;
mod proto;
mod texts;

use std::collections::BTreeMap;
use std::io::Write;

use prost::Message;
use vramscope_trace::{Counters, DeviceId, DeviceState, Event, EventKind, MemorySample, Recording, Replay};

use self::groups::Groups;
use self::proto::{
    COUNTER, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, INSTANT, NEEDS_STATE, ORDER_EXPLICIT,
    ProcessDescriptor, STATE_CLEARED, TracePacket, TrackDescriptor, TrackEvent, UNIT_BYTES,
};
use self::texts::{Role, Text, Texts};
use super::follow::{Lifetime, Moment, Step, follow};
use super::{ExportError, Progress};

/// Field 1 of the message `Trace`, with a length: what stands before each packet.
const PACKET_TAG: u8 = 1 << 3 | 2;
/// All packets are of one sequence: they are in one order and share what was interned.
const SEQUENCE: u32 = 1;

/// Writes a recording as a Perfetto trace.
///
/// # Errors
/// If the recording cannot be read or the output cannot be written.
pub fn perfetto(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    let mut trace = Trace { out, packet: Vec::new(), texts: Texts::new(recording), tracks: 0 };
    trace.begin(recording)?;
    let mut devices = Devices { groups: groups::largest(recording)?, devices: BTreeMap::new() };
    let mut replay = Replay::new();
    let begin = Moment { event: recording.first_event(), time_ns: recording.start_ns() };
    for (id, state) in replay.seek(recording, begin.event)?.devices() {
        devices.of(id, &mut trace, recording)?.counters(&mut trace, begin, state)?;
    }
    for id in recording.devices() {
        let process = devices.of(id, &mut trace, recording)?.process;
        marks::write(recording, id, process, &mut trace)?;
    }
    follow(recording, progress, |step| match step {
        Step::Began(lifetime) => devices.of(lifetime.device, &mut trace, recording)?.began(&mut trace, lifetime),
        Step::Ended(lifetime, _) => devices.of(lifetime.device, &mut trace, recording)?.ended(&mut trace, lifetime),
        Step::Event { moment, event, after, .. } => {
            let device = devices.of(event.device, &mut trace, recording)?;
            device.counters(&mut trace, moment, after)?;
            device.event(&mut trace, moment, &event)
        }
        // Marks and annotations alike are written beforehand: a span needs its end to be nested.
        Step::Annotation(_) => Ok(()),
    })?;
    let end = Moment { event: recording.end_event(), time_ns: recording.end_ns() };
    devices.devices.into_values().try_for_each(|device| device.finish(&mut trace, end))
}

/// The output.
struct Trace<'a> {
    out: &'a mut dyn Write,
    packet: Vec<u8>,
    texts: Texts<'a>,
    /// How many tracks there are; they are numbered from 1.
    tracks: u64,
}

impl Trace<'_> {
    /// The first packet: nothing is interned yet, and what time it was.
    fn begin(&mut self, recording: &Recording) -> Result<(), ExportError> {
        let epoch_ns = recording.info().epoch_unix_ns;
        let clock = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let start_ns = timestamp(recording.start_ns());
        let clocks = vec![
            clock(proto::CLOCK_BOOTTIME, start_ns),
            clock(proto::CLOCK_REALTIME, timestamp(epoch_ns.saturating_add(start_ns))),
        ];
        self.write(TracePacket {
            clock_snapshot: (epoch_ns > 0).then_some(ClockSnapshot { clocks }),
            timestamp: Some(start_ns),
            sequence_flags: Some(STATE_CLEARED),
            ..TracePacket::default()
        })
    }

    fn write(&mut self, packet: TracePacket) -> Result<(), ExportError> {
        self.packet.clear();
        self.packet.push(PACKET_TAG);
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        packet.encode_length_delimited(&mut self.packet).map_err(std::io::Error::other)?;
        Ok(self.out.write_all(&self.packet)?)
    }

    /// Makes a track and returns its number.
    fn track(&mut self, track: TrackDescriptor) -> Result<u64, ExportError> {
        self.tracks += 1;
        let track = TrackDescriptor { uuid: Some(self.tracks), ..track };
        self.write(TracePacket { track_descriptor: Some(track), ..TracePacket::default() })?;
        Ok(self.tracks)
    }

    /// Makes a track of this name under another, `rank` from the top.
    fn track_under(&mut self, parent: u64, name: &str, rank: i32) -> Result<u64, ExportError> {
        self.track(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        })
    }

    /// Makes a track for numbers of bytes. Those of one scale are drawn to one scale.
    fn counter_under(&mut self, parent: u64, name: &str, rank: i32, scale: &str) -> Result<u64, ExportError> {
        let counter = CounterDescriptor { unit: Some(UNIT_BYTES), y_axis_share_key: Some(scale.to_owned()) };
        self.track(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(rank),
            counter: Some(counter),
            ..TrackDescriptor::default()
        })
    }

    /// The number of a text, which is written where it is new.
    fn intern(&mut self, role: Role, text: Text) -> Result<u64, ExportError> {
        let (iid, fresh) = self.texts.number(role, text);
        if let Some(interned_data) = fresh {
            self.write(TracePacket {
                interned_data: Some(interned_data),
                sequence_flags: Some(NEEDS_STATE),
                ..TracePacket::default()
            })?;
        }
        Ok(iid)
    }

    fn event(&mut self, time_ns: u64, event: TrackEvent) -> Result<(), ExportError> {
        let needs_state = event.name_iid.is_some() || !event.debug_annotations.is_empty();
        self.write(TracePacket {
            timestamp: Some(timestamp(time_ns)),
            sequence_flags: needs_state.then_some(NEEDS_STATE),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// A named moment, or the beginning of a slice.
    fn named(
        &mut self,
        kind: i32,
        (track, time_ns): (u64, u64),
        name: Text,
        arguments: &[(&'static str, Argument)],
    ) -> Result<(), ExportError> {
        let name_iid = Some(self.intern(Role::Event, name)?);
        let mut debug_annotations = Vec::with_capacity(arguments.len());
        for (name, argument) in arguments {
            let name_iid = Some(self.intern(Role::ArgumentName, Text::Word(name))?);
            let annotation = DebugAnnotation { name_iid, ..DebugAnnotation::default() };
            debug_annotations.push(match *argument {
                Argument::Number(number) => DebugAnnotation { uint_value: Some(number), ..annotation },
                Argument::Pointer(pointer) => DebugAnnotation { pointer_value: Some(pointer), ..annotation },
                Argument::Text(text) => {
                    let iid = self.intern(Role::ArgumentValue, text)?;
                    DebugAnnotation { string_value_iid: Some(iid), ..annotation }
                }
            });
        }
        let (kind, track_uuid) = (Some(kind), Some(track));
        self.event(time_ns, TrackEvent { debug_annotations, kind, name_iid, track_uuid, counter_value: None })
    }

    fn end_slice(&mut self, track: u64, time_ns: u64) -> Result<(), ExportError> {
        let (kind, track_uuid) = (Some(proto::SLICE_END), Some(track));
        self.event(time_ns, TrackEvent { kind, track_uuid, ..TrackEvent::default() })
    }

    fn count(&mut self, track: u64, time_ns: u64, value: u64) -> Result<(), ExportError> {
        let counter_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
        let (kind, track_uuid) = (Some(COUNTER), Some(track));
        self.event(time_ns, TrackEvent { kind, track_uuid, counter_value, ..TrackEvent::default() })
    }
}

/// Perfetto reads times as signed.
fn timestamp(time_ns: u64) -> u64 {
    time_ns.min(i64::MAX as u64)
}

/// What an event says besides its name.
#[derive(Clone, Copy, Debug)]
enum Argument {
    Number(u64),
    Pointer(u64),
    Text(Text),
}

/// The devices that were met.
struct Devices {
    groups: groups::Largest,
    devices: BTreeMap<DeviceId, Device>,
}

impl Devices {
    fn of(&mut self, id: DeviceId, trace: &mut Trace<'_>, recording: &Recording) -> Result<&mut Device, ExportError> {
        // Not the entry's own way of doing this: making a device may fail.
        if !self.devices.contains_key(&id) {
            self.devices.insert(id, Device::new(id, trace, recording, self.groups.of(id))?);
        }
        Ok(self.devices.get_mut(&id).expect("it was put there"))
    }
}

/// A number of bytes and its name.
type Named<T> = (&'static str, fn(&T) -> u64);

/// The counters by name, in the order in which they are shown.
const COUNTERS: [Named<Counters>; 4] = [
    ("reserved bytes", |counters| counters.reserved),
    ("active bytes", |counters| counters.active),
    ("allocated bytes", |counters| counters.allocated),
    ("requested bytes", |counters| counters.requested),
];

/// What the driver says, likewise.
const SAMPLES: [Named<MemorySample>; 3] = [
    ("used by this process outside the allocator", |sample| sample.used_by_context),
    ("used by other processes", |sample| sample.used_by_others),
    ("free on the device", |sample| sample.free),
];

/// Where things stand under a device, from the top; the counters come first.
mod rank {
    pub(super) const COUNTERS: i32 = 0;
    pub(super) const SAMPLES: i32 = 10;
    pub(super) const FAILED: i32 = 20;
    pub(super) const MISSING: i32 = 21;
    pub(super) const SPANS: i32 = 30;
    pub(super) const MARKS: i32 = 31;
    pub(super) const LEFT_OUT: i32 = 40;
    pub(super) const LEFT_OUT_BYTES: i32 = 41;
    pub(super) const ALLOCATIONS: i32 = 50;
}

/// A device's tracks.
struct Device {
    process: u64,
    counters: [(u64, Option<u64>); COUNTERS.len()],
    samples: Option<[u64; SAMPLES.len()]>,
    failed: Option<u64>,
    missing: Option<u64>,
    groups: Groups,
}

impl Device {
    fn new(
        id: DeviceId,
        trace: &mut Trace<'_>,
        recording: &Recording,
        largest: groups::Sites,
    ) -> Result<Self, ExportError> {
        let named = recording.info().devices.iter().find(|info| info.device == id.0).map(|info| info.name.as_str());
        let what = if id == DeviceId::HOST { "pinned host memory".to_owned() } else { format!("GPU {}", id.0) };
        let name = named.filter(|name| !name.is_empty()).map_or(what.clone(), |name| format!("{what}: {name}"));
        let process = trace.track(TrackDescriptor {
            // Process 0 is what a system runs when it has nothing to do.
            process: Some(ProcessDescriptor { pid: Some(i32::from(id.0) + 1), process_name: Some(name) }),
            child_ordering: Some(ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        })?;
        let mut counters = [(0, None); COUNTERS.len()];
        for (at, (name, _)) in COUNTERS.iter().enumerate() {
            counters[at].0 = trace.counter_under(process, name, rank::COUNTERS + at as i32, "allocator")?;
        }
        let allocations = trace.track_under(process, "allocations by site", rank::ALLOCATIONS)?;
        let groups = Groups::new(process, allocations, largest);
        Ok(Self { process, counters, samples: None, failed: None, missing: None, groups })
    }

    /// Writes the counters that have changed.
    fn counters(&mut self, trace: &mut Trace<'_>, moment: Moment, state: &DeviceState) -> Result<(), ExportError> {
        let now = state.counters();
        for ((track, last), (_, of)) in self.counters.iter_mut().zip(COUNTERS) {
            let value = of(&now);
            if last.replace(value) != Some(value) {
                trace.count(*track, moment.time_ns, value)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, trace: &mut Trace<'_>, moment: Moment, event: &Event) -> Result<(), ExportError> {
        let process = self.process;
        match event.kind {
            EventKind::OutOfMemory { requested, device_free, stream, site } => {
                let track = lazily(&mut self.failed, || trace.track_under(process, "out of memory", rank::FAILED))?;
                let mut arguments = vec![
                    ("event", Argument::Number(moment.event)),
                    ("requested", Argument::Number(requested)),
                    ("device_free", Argument::Number(device_free)),
                    ("stream", Argument::Pointer(stream.0)),
                ];
                arguments.extend(trace.texts.site_arguments(site));
                trace.named(INSTANT, (track, moment.time_ns), Text::Word("out of memory"), &arguments)
            }
            EventKind::MemorySample { used_by_context, used_by_others, free } => {
                let sample = MemorySample { used_by_context, used_by_others, free };
                let tracks = lazily(&mut self.samples, || {
                    let mut tracks = [0; SAMPLES.len()];
                    for (at, (name, _)) in SAMPLES.iter().enumerate() {
                        tracks[at] = trace.counter_under(process, name, rank::SAMPLES + at as i32, "device")?;
                    }
                    Ok(tracks)
                })?;
                let values = tracks.into_iter().zip(SAMPLES.map(|(_, of)| of(&sample)));
                values.into_iter().try_for_each(|(track, value)| trace.count(track, moment.time_ns, value))
            }
            EventKind::Gap { lost } => {
                let track = lazily(&mut self.missing, || trace.track_under(process, "missing events", rank::MISSING))?;
                let arguments = [("event", Argument::Number(moment.event)), ("lost", Argument::Number(lost))];
                trace.named(INSTANT, (track, moment.time_ns), Text::Word("missing events"), &arguments)
            }
            _ => Ok(()),
        }
    }

    fn began(&mut self, trace: &mut Trace<'_>, lifetime: &Lifetime) -> Result<(), ExportError> {
        self.groups.began(trace, lifetime)
    }

    fn ended(&mut self, trace: &mut Trace<'_>, lifetime: &Lifetime) -> Result<(), ExportError> {
        self.groups.ended(trace, lifetime)
    }

    fn finish(self, trace: &mut Trace<'_>, end: Moment) -> Result<(), ExportError> {
        self.groups.finish(trace, end)
    }
}

/// What is made when it is needed first.
fn lazily<T: Copy>(place: &mut Option<T>, make: impl FnOnce() -> Result<T, ExportError>) -> Result<T, ExportError> {
    match *place {
        Some(made) => Ok(made),
        None => Ok(*place.insert(make()?)),
    }
}
