//! Writes the packets of a trace.

use std::io::Write;

use prost::Message;
use vramscope_trace::Recording;

use super::proto::{
    self, COUNTER, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, NEEDS_STATE, STATE_CLEARED, TracePacket,
    TrackDescriptor, TrackEvent, UNIT_BYTES,
};
use super::texts::{Argument, Text, TextUse, Texts};
use crate::export::error::Result;

/// The byte before each packet of a trace file: the key of field 1 (length-delimited) of Perfetto's
/// message `Trace`.
const PACKET_TAG: u8 = 1 << 3 | 2;
/// The sequence number of all packets: packets of one sequence are in order and share interned
/// strings.
const SEQUENCE: u32 = 1;

/// Writes a Perfetto trace packet by packet, and numbers its tracks and texts.
pub(super) struct TraceWriter<'a> {
    out: &'a mut dyn Write,
    packet: Vec<u8>,
    pub(super) texts: Texts<'a>,
    /// Number of tracks; they are numbered from 1.
    tracks: u64,
}

impl<'a> TraceWriter<'a> {
    /// Creates a writer and writes the first packet, which resets the interned strings and, if
    /// known, states the recording's start in time since 1970.
    pub(super) fn create(recording: &'a Recording, out: &'a mut dyn Write) -> Result<Self> {
        let mut writer = Self { out, packet: Vec::new(), texts: Texts::new(recording), tracks: 0 };
        let epoch_ns = recording.info().epoch_unix_ns;
        let clock = |clock_id, timestamp| Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
        let start_ns = timestamp(recording.start_ns());
        let clocks = vec![
            clock(proto::CLOCK_BOOTTIME, start_ns),
            clock(proto::CLOCK_REALTIME, timestamp(epoch_ns.saturating_add(start_ns))),
        ];
        writer.write(TracePacket {
            clock_snapshot: (epoch_ns > 0).then_some(ClockSnapshot { clocks }),
            timestamp: Some(start_ns),
            sequence_flags: Some(STATE_CLEARED),
            ..TracePacket::default()
        })?;
        Ok(writer)
    }

    /// Writes one packet with its tag and length.
    fn write(&mut self, packet: TracePacket) -> Result {
        self.packet.clear();
        self.packet.push(PACKET_TAG);
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        packet.encode_length_delimited(&mut self.packet).map_err(std::io::Error::other)?;
        Ok(self.out.write_all(&self.packet)?)
    }

    /// Writes the description of a new track and returns the track's number, from 1.
    pub(super) fn track(&mut self, track: TrackDescriptor) -> Result<u64> {
        self.tracks += 1;
        let track = TrackDescriptor { uuid: Some(self.tracks), ..track };
        self.write(TracePacket { track_descriptor: Some(track), ..TracePacket::default() })?;
        Ok(self.tracks)
    }

    /// Writes a new track below the track `parent` and returns its number. Tracks of one parent are
    /// sorted by `rank`, the lowest on top.
    pub(super) fn track_under(&mut self, parent: u64, name: &str, rank: i32) -> Result<u64> {
        self.track(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        })
    }

    /// Writes a new track for a counter of bytes below the track `parent` and returns its number.
    /// `rank` sorts tracks of one parent, the lowest on top. Counters with equal `scale` share a
    /// vertical scale.
    pub(super) fn counter_under(&mut self, parent: u64, name: &str, rank: i32, scale: &str) -> Result<u64> {
        let counter = CounterDescriptor { unit: Some(UNIT_BYTES), y_axis_share_key: Some(scale.to_owned()) };
        self.track(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: Some(parent),
            sibling_order_rank: Some(rank),
            counter: Some(counter),
            ..TrackDescriptor::default()
        })
    }

    /// Returns the number by which events refer to a text, and writes the text's definition if it
    /// is new.
    fn intern(&mut self, text_use: TextUse, text: Text) -> Result<u64> {
        let (iid, definition) = self.texts.number(text_use, text);
        if let Some(interned_data) = definition {
            self.write(TracePacket {
                interned_data: Some(interned_data),
                sequence_flags: Some(NEEDS_STATE),
                ..TracePacket::default()
            })?;
        }
        Ok(iid)
    }

    /// Writes one track event at `time_ns`, in nanoseconds since the recording's time 0.
    fn write_event(&mut self, time_ns: u64, event: TrackEvent) -> Result {
        let needs_state = event.name_iid.is_some() || !event.debug_annotations.is_empty();
        self.write(TracePacket {
            timestamp: Some(timestamp(time_ns)),
            sequence_flags: needs_state.then_some(NEEDS_STATE),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// Writes a named instant or the begin of a slice, as `kind` says, on a track at a time in
    /// nanoseconds since the recording's time 0.
    pub(super) fn write_named(
        &mut self,
        kind: i32,
        (track, time_ns): (u64, u64),
        name: Text,
        arguments: &[(&'static str, Argument)],
    ) -> Result {
        let name_iid = Some(self.intern(TextUse::Event, name)?);
        let mut debug_annotations = Vec::with_capacity(arguments.len());
        for (name, argument) in arguments {
            let name_iid = Some(self.intern(TextUse::ArgumentName, Text::Constant(name))?);
            let annotation = DebugAnnotation { name_iid, ..DebugAnnotation::default() };
            debug_annotations.push(match *argument {
                Argument::Number(number) => DebugAnnotation { uint_value: Some(number), ..annotation },
                Argument::Pointer(pointer) => DebugAnnotation { pointer_value: Some(pointer), ..annotation },
                Argument::Text(text) => {
                    let iid = self.intern(TextUse::ArgumentValue, text)?;
                    DebugAnnotation { string_value_iid: Some(iid), ..annotation }
                }
            });
        }
        let (kind, track_uuid) = (Some(kind), Some(track));
        self.write_event(time_ns, TrackEvent { debug_annotations, kind, name_iid, track_uuid, counter_value: None })
    }

    /// Ends the innermost open slice of a track at `time_ns`, in nanoseconds since the recording's
    /// time 0.
    pub(super) fn write_slice_end(&mut self, track: u64, time_ns: u64) -> Result {
        let (kind, track_uuid) = (Some(proto::SLICE_END), Some(track));
        self.write_event(time_ns, TrackEvent { kind, track_uuid, ..TrackEvent::default() })
    }

    /// Writes a counter's value from `time_ns` on, in nanoseconds since the recording's time 0.
    /// Values above `i64::MAX` become `i64::MAX`.
    pub(super) fn write_counter(&mut self, track: u64, time_ns: u64, value: u64) -> Result {
        let counter_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
        let (kind, track_uuid) = (Some(COUNTER), Some(track));
        self.write_event(time_ns, TrackEvent { kind, track_uuid, counter_value, ..TrackEvent::default() })
    }
}

/// Limits a time in nanoseconds to `i64::MAX`, because Perfetto reads times as signed integers.
fn timestamp(time_ns: u64) -> u64 {
    time_ns.min(i64::MAX as u64)
}

/// Ranks of the tracks under a device, which sort them from top to bottom.
pub(super) mod rank {
    /// Rank of the first counter track below a device's process; the lowest rank is on top.
    pub(crate) const COUNTERS: i32 = 0;
    /// Rank of the first memory-sample track below a device's process; the lowest rank is on top.
    pub(crate) const SAMPLES: i32 = 10;
    /// Rank of the track with failed requests below a device's process; the lowest rank is on top.
    pub(crate) const OUT_OF_MEMORY: i32 = 20;
    /// Rank of the track with gaps in the recording below a device's process; the lowest rank is on
    /// top.
    pub(crate) const MISSING_EVENTS: i32 = 21;
    /// Rank of the tracks with spans (begin and end marks) below a device's process; the lowest is
    /// on top.
    pub(crate) const SPANS: i32 = 30;
    /// Rank of the track with instant marks below a device's process; the lowest rank is on top.
    pub(crate) const MARKS: i32 = 31;
    /// Rank of the track that counts omitted sites and allocations, below a device's process; the
    /// lowest is on top.
    pub(crate) const OMITTED: i32 = 40;
    /// Rank of the counter of live bytes without a slice below a device's process; the lowest is on
    /// top.
    pub(crate) const OMITTED_BYTES: i32 = 41;
    /// Rank of the track that holds all allocation tracks below a device's process; the lowest is
    /// on top.
    pub(crate) const ALLOCATIONS: i32 = 50;
}

/// Returns the value in `slot`; if it is empty, first fills it with the result of `create`.
pub(super) fn get_or_create<T: Copy>(slot: &mut Option<T>, create: impl FnOnce() -> Result<T>) -> Result<T> {
    match *slot {
        Some(value) => Ok(value),
        None => Ok(*slot.insert(create()?)),
    }
}
