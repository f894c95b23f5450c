//! The event model of GPU memory: events, their binary encoding, and the memory state at any event.
//!
//! A training program's caching allocator emits [`Event`]s. This crate encodes them as a recording
//! (a `.vram` file or stream), decodes it again, and returns the memory state at any moment. It
//! depends on no other crate of the workspace.
//!
//! It is not an allocator, reads and writes no files or sockets, reads no clock, starts no thread
//! and has no `unsafe` code, so it behaves the same in a training program, on the command line and
//! in the browser (wasm32). Callers bring the bytes, through [`Decoder::push`],
//! [`Recording::push`] or a [`ReadAt`] implementation.
//!
//! # Main types
//!
//! - [`Event`]: one allocator event; [`Sink`]: a receiver of events.
//! - [`Encoder`]: turns events into the chunks of a recording; [`Decoder`]: turns bytes, split
//!   anywhere, back into events.
//! - [`MemoryState`]: all segments and blocks at one moment; [`MemoryState::apply`] applies an
//!   event.
//! - [`Recording`]: an opened recording with its index; [`Replay`]: its state at any moment.
//! - [`CounterSeries`]: allocated, active, reserved and requested bytes over time, at any zoom.
//! - [`Lifetimes`]: the start and end of every allocation.
//! - [`Metrics`]: fragmentation and other figures at one moment; [`MetricsSeries`]: over time.
//! - [`live_bytes_by_site`]: which sites hold the memory; [`shared_site_numbers`]: which sites of
//!   two recordings match.
//! - [`live_protocol`]: the messages between servers and clients of a live recording.
//! - [`ByteSize`], [`Count`], [`Percent`], [`DurationNs`]: how sizes, counts, percentages and
//!   durations are shown.
//!
//! # Event numbers
//!
//! *Moment* n, or *event number* n, is the state after the first n events. Moment 0 precedes the
//! first event; the first event is number 1, and a block exists from its allocating event's number
//! on. Where an API needs an event itself, it takes or returns the event's *index*, counted from 0:
//! the event with index i leads from moment i to moment i + 1.
//!
//! A [`Relabel`] gives a live block a new site. It is not an event and has no number; it takes
//! effect with the event that follows it, so that the state at a moment never changes while a
//! recording grows, except at its last moment.
//!
//! # Example
//!
//! ```
//! use vramscope_trace::{
//!     DeviceId, Encoder, Event, EventKind, PoolKey, Recording, RecordingInfo, Replay, Sink, SiteId,
//!     StreamId,
//! };
//!
//! let mut encoder = Encoder::new(&RecordingInfo::default());
//! let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
//! for (time_ns, kind) in [
//!     (0, EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site }),
//!     (10, EventKind::BlockAllocated { address: 0, size: 512, requested: 400, stream, pool, site }),
//!     (20, EventKind::FreeCompleted { address: 0, site }),
//! ] {
//!     encoder.event(&Event { device: DeviceId(0), time_ns, kind });
//! }
//! encoder.flush();
//!
//! let mut recording = Recording::new();
//! for chunk in encoder.take_output() {
//!     recording.push(&chunk.bytes)?;
//! }
//! let mut replay = Replay::new();
//! let state = replay.seek(&recording, 2)?;
//! let device = state.device(DeviceId(0)).expect("its events were recorded");
//! assert_eq!(device.counters().allocated, 512);
//! # Ok::<(), vramscope_trace::FormatError>(())
//! ```
#![forbid(unsafe_code)]

mod address_map;
mod chunk;
mod chunk_local_blocks;
mod chunk_reader;
mod columns;
mod compression;
mod counter_series;
mod counters;
mod decoder;
mod definition_codec;
mod device_state;
mod encoder;
mod error;
mod even_part;
mod event;
mod event_codec;
mod indexed_encoder;
mod info;
mod lifetimes;
mod live_bytes_by_site;
pub mod live_protocol;
mod memory_state;
mod metrics;
mod metrics_over_time;
mod number_column;
mod quantity;
mod recording;
mod redactor;
mod segment;
mod series_codec;
mod shortened;
mod sink;
mod site;
mod site_matching;
#[doc(hidden)]
pub mod sort;
mod state_codec;
mod time_pyramid;
mod varint;

pub use chunk::{Chunk, ChunkKind, FORMAT_NAME, FORMAT_VERSION, MAGIC};
pub use counter_series::{CounterColumn, CounterSeries, Peak, SampleColumn, UsedMemoryPeaks};
pub use counters::{Counters, FreeSpace, MemorySample, fragmentation};
pub use decoder::{DecodedItem, Decoder};
pub use device_state::DeviceState;
pub use encoder::Encoder;
pub use error::FormatError;
pub use even_part::even_part;
pub use event::{
    Annotation, AnnotationStage, DeviceId, Event, EventKind, EventType, MempoolId, PoolKey, PoolKind, Relabel, StreamId,
};
pub use indexed_encoder::IndexedEncoder;
pub use info::{DeviceInfo, RecordingInfo, SegmentSource};
pub use lifetimes::{
    Allocation, AllocationOrigin, AllocationRow, AllocationSums, DeviceLifetimes, EventTime, Lifetime, LifetimeChange,
    LifetimeEnding, LifetimeSummary, LifetimeTracker, Lifetimes, LifetimesBuilder, LifetimesReader, MomentTimes,
    RowChange,
};
pub use live_bytes_by_site::{
    FrameOrigin, SiteBytes, backward_node, frame_name, frame_origin, is_backward_operation, is_decorator,
    is_python_frame, is_runtime, live_bytes_by_site, short_file_name, short_function_name, site_name, stack_name,
};
pub use memory_state::MemoryState;
pub use metrics::{Churn, Metrics, MetricsSample, MetricsSeries, metrics_by_group, peak_utilization, unusable_share};
pub use metrics_over_time::{MetricSummary, MetricsOverTime, metrics_over_time};
pub use quantity::{ByteSize, Count, DurationNs, ParseByteSizeError, Percent};
pub use recording::{
    Damage, Incident, IncidentKind, MAX_EXACT_EVENTS, RangeCopy, ReadAt, Recording, RecordingOpener, Replay,
};
pub use redactor::Redactor;
pub use segment::{Block, Extent, Segment};
pub use shortened::shortened;
pub use sink::{MemorySink, NullSink, Sink};
pub use site::{
    Category, Definition, Definitions, Frame, FrameId, Interner, NOT_IN_SOURCE_SCOPE, Site, SiteId, Stack, StackId,
    StringId,
};
pub use site_matching::{PerRecording, shared_site_numbers};
pub use state_codec::digest;
