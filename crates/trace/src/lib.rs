//! GPU memory over time: what an event is, how events become bytes and bytes events, and what the memory looks like at any of them.
//!
//! This crate does no input or output: it reads no clock and no file, starts no thread and has no `unsafe`, so it runs the same in
//! a training program, on the command line and in the browser.
//!
//! - [`Event`] is what happened; [`Sink`] is where events go.
//! - [`Encoder`] turns events into a recording's chunks; [`Decoder`] takes bytes cut anywhere and gives events back.
//! - [`MemoryState`] is what every byte is doing; [`MemoryState::apply`] takes the next event.
//! - [`Recording`] holds chunks and their index; [`Replay`] shows the state at any event of one.
//! - [`Series`] is the counters over time, for drawing at any zoom.
//! - [`Lifetimes`] is when every allocation began and ended.
//! - [`Metrics`] is how well memory is used at a moment, [`MetricsSeries`] over time.
//! - [`holders`] says which sites hold the memory of a moment, [`compare`](fn@compare) what two recordings differ in.
#![forbid(unsafe_code)]

mod address_map;
mod buckets;
mod chunk;
mod columns;
mod compare;
mod decoder;
mod definition_code;
mod device_state;
mod encoder;
mod error;
mod event;
mod event_code;
mod holders;
mod info;
mod lifetimes;
mod metrics;
mod newborn;
mod pack;
mod quantity;
mod recording;
mod renumber;
mod replay;
mod series;
mod series_code;
mod sink;
mod site;
mod state;
mod state_code;
mod varint;

pub use chunk::{Chunk, ChunkKind, FORMAT_NAME, FORMAT_VERSION, MAGIC};
pub use compare::{Comparison, DeviceChange, Held, Pair, SiteChange, Totals, compare};
pub use decoder::{Decoder, Item};
pub use device_state::DeviceState;
pub use encoder::Encoder;
pub use error::FormatError;
pub use event::{Annotation, DeviceId, Event, EventKind, MempoolId, Pool, PoolKind, Stage, StreamId};
pub use holders::{Holder, frame_name, holders, site_name};
pub use info::{DeviceInfo, Info};
pub use lifetimes::{Allocation, DeviceLifetimes, Lifetimes, LifetimesBuilder, Sums};
pub use metrics::{Churn, Metrics, MetricsSample, MetricsSeries, metrics_by_group, peak_use, unusable_share};
pub use quantity::{ByteSize, Count, DurationNs, ParseByteSizeError};
pub use recording::{Damage, Incident, IncidentKind, Opening, ReadAt, Recording};
pub use replay::Replay;
pub use series::{Column, Peak, SampleColumn, Series, UsedPeaks};
pub use sink::{Memory, Null, Sink};
pub use site::{Category, Definition, Definitions, Frame, FrameId, Interner, Site, SiteId, Stack, StackId, StringId};
pub use state::{Block, Counters, Extent, FreeSpace, MemorySample, MemoryState, Segment};
pub use state_code::digest;
