//! What a training program embeds: memory from the pool, and everything that shows what the pool does.
//!
//! It decides nothing about memory (that is `vramscope-pool`) and nothing about a recording's bytes (that is `vramscope-trace`); it
//! connects both to the operating system: memory, threads, the clock and the network. Only it and `vramscope-pluggable` have `unsafe`.
//!
//! - [`DevicePool`] hands out [`PoolSlice`]s of a [`MemoryDevice`]'s memory, with [`Scope`]s that say what they are for.
//!   [`HostPool`] is one over this machine's memory, [`CudaPool`] one over a GPU's.
//! - [`PoolStream`] is a stream whose buffers come from a pool, by the names that cudarc's stream has for what makes them.
//! - [`Monitor`] is recorder, hub and server in one, with a file: all that most programs need to be watched.
//! - [`Recorder`] writes down what happened, on a thread of its own; a [`RecorderHandle`] is the sink that a pool is given.
//! - [`RecordingFile`] is where a recording is written while it is made, in one piece at every moment.
//! - [`Hub`] passes a recording on to everyone who watches; [`Server`] is the page and the stream over HTTP.

mod buffer;
mod callback;
mod controls;
mod cuda;
mod env;
mod figures;
mod file;
mod follow;
mod gather;
mod host;
mod host_memory;
mod hub;
mod inner;
mod memory;
mod mempool;
mod monitor;
mod observer;
mod pool;
mod process;
mod push;
mod raw;
mod recorder;
mod scope;
mod server;
mod sites;
mod snapshot;
mod socket;
mod stream;
mod time;
mod torch;

pub use buffer::PoolSlice;
pub use controls::{Controls, Done};
pub use cuda::{CudaBuffer, CudaDevice, CudaError, CudaPool, PoolView, PoolViewMut};
pub use env::{EnvError, settings_from_env};
pub use figures::{DeviceFigures, Figures};
pub use file::{FileError, Keep, RecordingFile, parse_keep_bytes, parse_time};
pub use follow::{FollowError, FollowFrom, FollowEvent, FollowOptions, Follower};
pub use gather::Aggregator;
pub use host::HostDevice;
pub use host_memory::HostBuffer;
pub use hub::{Begin, Hub, HubLimits, Identity, NotAPosition, Position, Taken, Viewer};
pub use memory::{DeviceUsage, Element, MemoryDevice};
pub use mempool::graph_pool_handle;
pub use monitor::{Listen, Monitor, MonitorError, MonitorOptions};
pub use observer::recording_at_out_of_memory;
pub use pool::{DevicePool, HostPool, Span};
pub use process::is_control;
pub use push::{PUSH_VARIABLE, Push, push_from_env};
pub use recorder::{FileErrorCallback, Outputs, Overflow, Recorder, RecorderHandle, Summary};
pub use scope::{Scope, ScopeLayer, enter_scope, leave_scope};
pub use server::{
    Asset, Assets, Content, DEFAULT_PORT, MEDIA_TYPE, Recorded, RecordingBytes, Server, ServerLimits, ServerOptions,
    StartError, TlsError, TlsFiles, Token, TokenError, page_address,
};
pub use snapshot::{SegmentType, SnapshotBlock, SnapshotFrame, SnapshotSegment, SnapshotState};
pub use socket::Address;
pub use stream::PoolStream;
pub use torch::InvalidFraction;
pub use vramscope_pool::{
    AllocateError, ConfError, DeviceError, DeviceMemory, CaptureFilter, FreeError, MemoryStats, MempoolError, OutOfMemory,
    Settings, Stats,
};
pub use vramscope_trace::{Category, MempoolId, StreamId};
