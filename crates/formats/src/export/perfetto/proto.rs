//! The messages of a Perfetto trace that are used here. Names and numbers of fields are those of
//! `protos/perfetto/trace` in Perfetto's repository.

use prost::Message;

/// [`TrackEvent::kind`]: a slice begins.
pub(super) const SLICE_BEGIN: i32 = 1;
/// [`TrackEvent::kind`]: the innermost slice of the track ends.
pub(super) const SLICE_END: i32 = 2;
/// [`TrackEvent::kind`]: an instant.
pub(super) const INSTANT: i32 = 3;
/// [`TrackEvent::kind`]: a counter's new value.
pub(super) const COUNTER: i32 = 4;

/// [`TracePacket::sequence_flags`]: earlier interned strings of this sequence are no longer valid.
pub(super) const STATE_CLEARED: u32 = 1;
/// [`TracePacket::sequence_flags`]: the packet uses interned strings.
pub(super) const NEEDS_STATE: u32 = 2;

/// [`CounterDescriptor::unit`]: bytes.
pub(super) const UNIT_BYTES: i32 = 3;
/// [`TrackDescriptor::child_ordering`]: by [`TrackDescriptor::sibling_order_rank`].
pub(super) const ORDER_EXPLICIT: i32 = 3;
/// [`TrackDescriptor::sibling_merge_behavior`]: tracks with the same
/// [`TrackDescriptor::sibling_merge_key_int`] are shown as one.
pub(super) const MERGE_BY_KEY: i32 = 3;
/// [`Clock::clock_id`]: time since 1970.
pub(super) const CLOCK_REALTIME: u32 = 1;
/// [`Clock::clock_id`]: the default clock of timestamps.
pub(super) const CLOCK_BOOTTIME: u32 = 6;

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

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

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

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    pub(super) unit: Option<i32>,
    /// Counters with the same key and parent share a vertical scale.
    #[prost(string, optional, tag = "7")]
    pub(super) y_axis_share_key: Option<String>,
}

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

/// An argument of an event. Exactly one of the values is set.
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

/// Strings that later events refer to by number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<InternedName>,
    #[prost(message, repeated, tag = "29")]
    pub(super) debug_annotation_string_values: Vec<InternedName>,
}

/// `EventName`, `DebugAnnotationName` and `InternedString`, which have the same encoding; the text
/// of the last one is bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedName {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}
