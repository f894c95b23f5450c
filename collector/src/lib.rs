//! The crate that a training program embeds: it allocates GPU memory from a pool, records what the
//! pool does, and shows it live.
//!
//! It does not decide where memory goes (`vramscope-pool` does) and does not define the recording's
//! format (`vramscope-trace` does). It connects both to memory, threads, the clock and the network.
//!
//! [`Monitor::builder`] sets up everything that most programs need:
//!
//! ```no_run
//! use vramscope_collector::{Category, HostDevice, Monitor};
//!
//! let (monitor, pool) =
//!     Monitor::builder(HostDevice::new(1 << 30)).program("train").record("run.vram").start()?;
//! let _step = pool.scope_with("forward", Category::Activation);
//! let hidden = pool.alloc_zeros::<f32>(1024)?;
//! drop(hidden);
//! monitor.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Main types
//!
//! - [`DevicePool`] allocates [`PoolSlice`]s of a [`MemoryDevice`]'s memory. [`HostPool`] is a pool
//!   over this machine's memory; `CudaPool` is one over a GPU's.
//! - [`PoolStream`] is a stream whose buffers come from a pool, with the method names of cudarc's.
//! - [`Scope`] names a part of the program and the [`Category`] of its allocations.
//! - [`Monitor`] is the recorder, its file, the hub and the server in one.
//! - [`Recorder`] encodes events on its own thread; pools send them through a [`RecorderHandle`].
//! - [`RecordingFile`] is the file that a recording is written to while it is made.
//! - [`Hub`] holds the newest part of a recording for viewers; `Server` serves it over HTTP.
//!
//! # Features
//!
//! All features are additive. Without features, this crate has the pool, the recorder and the file,
//! and depends on no async runtime, HTTP or TLS. Features in bold are on by default.
//!
//! | feature | adds |
//! | --- | --- |
//! | **`server`** | the live page and its stream: `Server`, `Controls`, `MonitorBuilder::listen` |
//! | **`push`** | pushing to a `vramscope serve` that several processes share |
//! | **`follow`** | `Follower`, a client of a live recording, and `download` |
//! | **`tls`** | HTTPS for the server, and `https://` for `push` and `follow` |
//! | **`metrics`** | `/metrics` for Prometheus; includes `server` |
//! | `session` | `session`: the recording of a process by a library loaded into it |
//! | **`tracing-layer`** | `ScopeLayer`: `tracing` spans as scopes |
//! | **`half`** | buffers of `f16` and `bf16`; included in `cuda-*` |
//! | **`native-stacks`** | `DevicePool::record_native_stacks`: the call stack of each request |
//! | **`nvml`** | how much device memory other processes hold, for `cuda` |
//! | **`cuda-13000`**, `cuda-12090`, … | GPUs through cudarc, built for one version of CUDA |
//!
//! At most one `cuda-*` version may be on, and it must be that of the program's own `cudarc`. A
//! program that uses another version than 13.0 sets `default-features = false` and names its
//! features.
//!
//! # Errors and messages
//!
//! Errors are typed, and their `source()` is the cause; their text includes the cause's. The crate
//! prints nothing: it logs through [`tracing`], at level `error` what ends a recording, at `warn`
//! problems such as a lost connection, and at `info` which processes connect.

#[cfg(all(
    feature = "cuda",
    not(any(
        feature = "cuda-12040",
        feature = "cuda-12050",
        feature = "cuda-12060",
        feature = "cuda-12080",
        feature = "cuda-12090",
        feature = "cuda-13000",
    ))
))]
compile_error!("feature `cuda` needs a CUDA version: enable one of `cuda-12040` to `cuda-13000` instead");

/// Number of features `cuda-*` that are enabled, each for one CUDA version; more than one is an
/// error.
#[cfg(feature = "cuda")]
const CUDA_VERSIONS: usize = cfg!(feature = "cuda-12040") as usize
    + cfg!(feature = "cuda-12050") as usize
    + cfg!(feature = "cuda-12060") as usize
    + cfg!(feature = "cuda-12080") as usize
    + cfg!(feature = "cuda-12090") as usize
    + cfg!(feature = "cuda-13000") as usize;
/// Rejects a build with more than one `cuda-*` version.
#[cfg(feature = "cuda")]
const _: () = assert!(
    CUDA_VERSIONS <= 1,
    "more than one `cuda-*` version is enabled: set `default-features = false` and enable one of them"
);

#[cfg(feature = "server")]
mod aggregator;
mod buffer;
mod callback;
#[cfg(all(test, feature = "push", feature = "server"))]
mod captured_log;
#[cfg(feature = "server")]
mod controls;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "follow")]
mod download;
mod env;
mod figures;
mod file;
#[cfg(feature = "follow")]
mod follow;
mod host;
mod host_memory;
mod hub;
mod log_text;
mod memory;
mod mempool;
mod monitor;
mod observer;
mod pool;
#[cfg(any(feature = "push", feature = "server"))]
mod process;
#[cfg(feature = "push")]
mod push;
#[cfg(any(feature = "push", feature = "server"))]
mod push_protocol;
mod raw;
mod recorded_pool;
mod recorder;
pub mod ring;
mod scope;
#[cfg(feature = "tracing-layer")]
mod scope_layer;
mod scope_paths;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "session")]
pub mod session;
mod sites;
mod snapshot;
#[cfg(any(feature = "follow", feature = "push"))]
mod socket;
mod stream;
mod text;
mod time;
mod torch;
mod wait_check;
#[cfg(test)]
mod wait_until;

#[cfg(feature = "server")]
pub use aggregator::{Aggregator, JoinError, ProcessConnection};
pub use buffer::PoolSlice;
#[cfg(feature = "server")]
pub use controls::{CommandResult, Controls};
#[cfg(feature = "cuda")]
pub use cuda::{CudaBuffer, CudaDevice, CudaError, CudaPool, PoolView, PoolViewMut};
#[cfg(feature = "follow")]
pub use download::download;
pub use env::{EnvError, REDACT_VARIABLE, redact_from_env, settings_from_env};
pub use figures::{DeviceFigures, Figures, MarkFigures};
pub use file::{
    FileError, Keep, ParseKeepBytesError, ParseTimeError, RecordingFile, create_replacement, file_writes,
    parse_keep_bytes, parse_time, sync_folder_of,
};
#[cfg(feature = "follow")]
pub use follow::{FollowError, FollowErrorKind, FollowEvent, FollowFrom, FollowOptions, Follower};
pub use host::HostDevice;
pub use host_memory::HostBuffer;
pub use hub::{
    FiguresWatch, Hub, HubLimits, InvalidPosition, RecordingIdentity, StreamPosition, ViewFrom, Viewer, ViewerChunks,
};
pub use log_text::log_text;
pub use memory::{DeviceUsage, Element, MemoryDevice};
pub use mempool::graph_pool_handle;
#[cfg(feature = "server")]
pub use monitor::Listen;
pub use monitor::{Monitor, MonitorBuilder, MonitorError};
pub use observer::recording_at_out_of_memory;
pub use pool::{DevicePool, HostPool, Span};
#[cfg(any(feature = "push", feature = "server"))]
pub use process::{Process, Rank};
#[cfg(feature = "push")]
pub use push::{
    Demand, PUSH_VARIABLE, ParsePushServer, Push, PushAddress, PushMessage, PushServer, PushVariableError, Transport,
    push_from_env, register_push_scheme,
};
pub use recorder::{FileErrorCallback, Outputs, Overflow, Recorder, RecorderHandle, Summary};
pub use scope::{Scope, enter_scope, leave_scope};
#[cfg(feature = "tracing-layer")]
pub use scope_layer::ScopeLayer;
#[cfg(feature = "server")]
pub use server::{
    ANY_HOST, Assets, DEFAULT_PORT, FleetClient, FleetFeed, MEDIA_TYPE, MetricFamily, MetricSample, MetricValue,
    RecordingBytes, ServedContent, ServedRecording, Server, ServerLimits, ServerOptions, StartError, TlsError,
    TlsFiles, Token, TokenError, page_address,
};
pub use snapshot::{SegmentType, SnapshotBlock, SnapshotFrame, SnapshotSegment, SnapshotState};
#[cfg(any(feature = "follow", feature = "push"))]
pub use socket::{Address, AddressError};
pub use stream::PoolStream;
pub use text::is_control;
pub use torch::InvalidFraction;
pub use vramscope_pool::{
    AllocateError, CaptureFilter, ConfError, DeviceError, DeviceMemory, DriverFailure, FreeError, MemoryStats,
    MempoolError, OutOfMemory, Settings, StatBySize, Stats,
};
pub use vramscope_trace::{Category, MempoolId, StreamId};
