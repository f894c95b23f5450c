//! The messages of a Perfetto trace that are used here. Names and numbers of fields come from
//! `protos/perfetto/trace` in Perfetto's repository.

use prost::Message;

/// Value of [`TrackEvent::kind`] for the begin of a slice, a named interval on a track.
pub(super) const SLICE_BEGIN: i32 = 1;
/// Value of [`TrackEvent::kind`] for the end of the innermost open slice of a track.
pub(super) const SLICE_END: i32 = 2;
/// Value of [`TrackEvent::kind`] for a named moment on a track.
pub(super) const INSTANT: i32 = 3;
/// Value of [`TrackEvent::kind`] for a new value of a counter track.
pub(super) const COUNTER: i32 = 4;

/// Bit of [`TracePacket::sequence_flags`]: interned strings that were defined before this packet
/// are no longer valid.
pub(super) const STATE_CLEARED: u32 = 1;
/// Bit of [`TracePacket::sequence_flags`]: the packet refers to interned strings.
pub(super) const NEEDS_STATE: u32 = 2;

/// Value of [`CounterDescriptor::unit`] for bytes.
pub(super) const UNIT_BYTES: i32 = 3;
/// Value of [`TrackDescriptor::child_ordering`] for tracks sorted by
/// [`TrackDescriptor::sibling_order_rank`].
pub(super) const ORDER_EXPLICIT: i32 = 3;
/// Value of [`TrackDescriptor::sibling_merge_behavior`] for tracks that are drawn as one if they
/// have one parent and one [`TrackDescriptor::sibling_merge_key_int`].
pub(super) const MERGE_BY_KEY: i32 = 3;
/// Value of [`Clock::clock_id`] for nanoseconds since 1970.
pub(super) const CLOCK_REALTIME: u32 = 1;
/// Value of [`Clock::clock_id`] for the clock that a trace's timestamps use by default.
pub(super) const CLOCK_BOOTTIME: u32 = 6;

/// Perfetto's message `TracePacket`: one record of a trace, such as an event, a track or
/// definitions of strings.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    /// In nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

/// Perfetto's message `ClockSnapshot`: the values of several clocks at one moment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

/// Perfetto's message `ClockSnapshot.Clock`: the value of one clock, in nanoseconds.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

/// Perfetto's message `TrackDescriptor`: one track (row) of the trace, its name, parent and
/// position.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
    #[prost(int32, optional, tag = "11")]
    pub(super) child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub(super) sibling_order_rank: Option<i32>,
    #[prost(string, optional, tag = "14")]
    pub(super) description: Option<String>,
    #[prost(int32, optional, tag = "15")]
    pub(super) sibling_merge_behavior: Option<i32>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) sibling_merge_key_int: Option<u64>,
}

/// Perfetto's message `ProcessDescriptor`: number and name of a process. A device is shown as a
/// process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

/// Perfetto's message `CounterDescriptor`: unit and vertical scale of a counter track.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    pub(super) unit: Option<i32>,
    /// Counters with equal keys and one parent share a vertical scale.
    #[prost(string, optional, tag = "7")]
    pub(super) y_axis_share_key: Option<String>,
}

/// Perfetto's message `TrackEvent`: the begin or end of a slice, an instant, or a counter's new
/// value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub(super) kind: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
}

/// Perfetto's message `DebugAnnotation`: one named argument of an event. Exactly one of the values
/// is set.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub(super) pointer_value: Option<u64>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) string_value_iid: Option<u64>,
}

/// Perfetto's message `InternedData`: strings that later packets refer to by number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "29")]
    pub(super) debug_annotation_string_values: Vec<InternedName>,
}

/// Perfetto's messages `EventName`, `DebugAnnotationName` and `InternedString`, which have one
/// encoding: a string and its number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedName {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}
