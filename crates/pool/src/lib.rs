//! PyTorch's CUDA caching allocator as a pure state machine.
//!
//! A [`Pool`] obtains segments from a [`Device`], serves requests with blocks of them, keeps freed
//! blocks for later requests, and emits every decision as an event to a
//! [`Sink`](vramscope_trace::Sink). It decides like PyTorch's allocator: rounding, best fit, split,
//! merge, retry, expandable segments, stream uses and private pools. The tests replay recorded
//! histories to verify this.
//!
//! The crate never accesses the memory that it manages; an address is only a number. It reads no
//! clock, starts no thread, takes no lock and has no `unsafe` code. It builds for wasm32, because
//! the readers of `vramscope-formats`, which the page uses, need its size rules and settings.
//!
//! - [`Pool`] is the allocator: [`allocate`](Pool::allocate), [`free`](Pool::free),
//!   [`empty_cache`](Pool::empty_cache).
//! - [`Device`] is the interface to the device; [`SimulatedDevice`] implements it without memory.
//! - [`Settings`] are the options of `PYTORCH_CUDA_ALLOC_CONF`; [`RecordedConf`] are the options of
//!   a recording, which may include options that this crate does not know.
//! - [`Stats`] are the counters of `torch.cuda.memory_stats`.
//! - [`rerun`] runs recorded requests through a pool: to verify its decisions, or to simulate other
//!   settings.
//!
//! # Reading order
//!
//! First the data: `size` (size rules), `device`, `block`, `free_blocks`, `stream_pool`,
//! `live_blocks`, `private_pools`, `stream_uses`, `stats` and `pool` (the state). Then the phases
//! of an allocation and its free, each a file, with the functions of PyTorch's
//! `CUDACachingAllocator.cpp` that they correspond to:
//!
//! | file | phase | in PyTorch |
//! | --- | --- | --- |
//! | `request` | round the size, choose the pool | `malloc`, `round_size`, `get_pool` |
//! | `hit` | best fit, split | `get_free_block`, `should_split`, `alloc_found_block` |
//! | `slow_path` | callbacks, garbage collection, new segment, use-on-OOM pools, release, retry, out of memory | `malloc`, `trigger_free_memory_callbacks`, `alloc_block`, `try_mempool_fallback` |
//! | `expandable` | map and unmap pages of expandable segments | `try_allocate_expandable_block`, `map_block`, `unmap_block` |
//! | `reclaim` | release cached segments | `emptyCache`, `garbage_collect_cached_blocks`, `release_available_cached_blocks`, `release_cached_blocks`, `release_block` |
//! | `free` | free, merge | `free`, `free_block`, `try_merge_blocks` |
//! | `streams` | deferred frees | `recordStream`, `insert_events`, `process_events`, `synchronize_and_free_events` |
//! | `graph_pools` | private pools | `beginAllocateToPool`, `endAllocateToPool`, `releasePool` |
//! | `checkpoint` | a private pool's earlier blocks | `setSegmentStateToCheckpoint` |
//!
//! Last, `restore` (a pool from a recording's memory state), `view` (segments and blocks for
//! display), `conf`, `conf_token`, `conf_error` and `recorded_conf` (settings as text),
//! `memory_stats` and `summary` (PyTorch's reports), and `rerun`.
#![forbid(unsafe_code)]

mod block;
mod checkpoint;
mod conf;
mod conf_error;
mod conf_token;
mod device;
mod error;
mod expandable;
mod free;
mod free_blocks;
mod graph_pools;
mod hit;
mod index;
mod live_blocks;
mod memory_stats;
mod pool;
mod private_pools;
mod reclaim;
mod recorded_conf;
mod request;
pub mod rerun;
mod restore;
mod settings;
mod simulated;
pub mod size;
mod slow_path;
mod stats;
mod stream_pool;
mod stream_uses;
mod streams;
mod summary;
mod view;

pub use block::BlockState;
pub use conf::CONF_VARIABLES;
pub use conf_error::{ConfError, ConfErrorKind};
pub use device::{Device, DeviceError, DeviceMemory, DriverFailure, StreamEvent};
pub use error::{AllocateError, FreeError, MempoolError, OutOfMemory};
pub use memory_stats::MemoryStats;
pub use pool::{Origin, Pool};
pub use private_pools::CaptureFilter;
pub use recorded_conf::RecordedConf;
pub use request::{AllocatedBlock, FreeMemoryCallback};
pub use settings::Settings;
pub use simulated::SimulatedDevice;
pub use size::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES, MIN_DEDICATED_SEGMENT_BYTES};
pub use stats::{Stat, StatBySize, Stats};
pub use summary::memory_summary;
pub use view::{BlockView, SegmentView};
