//! PyTorch's caching allocator as a pure state machine.
//!
//! The pool takes segments from a [`Device`], hands out blocks of them, keeps freed blocks for the next request, and tells a
//! [`Sink`](vramscope_trace::Sink) everything that happens. Sizes, best fit, split, merge and retry are those of PyTorch's CUDA
//! caching allocator, and recorded histories are replayed in the tests to see that they are; so are its settings, expandable segments,
//! uses on several streams and private pools.
//!
//! This crate never touches the memory that it manages: an address is a number. It reads no clock, starts no thread, takes no
//! lock and has no `unsafe`; it builds for wasm32, so that the viewer can ask "what if" in the browser.
//!
//! - [`Pool`] is the allocator: [`allocate`](Pool::allocate), [`free`](Pool::free), [`empty_cache`](Pool::empty_cache).
//! - [`Device`] is where segments come from; [`SimulatedDevice`] is one that exists only as numbers.
//! - [`Settings`] are the knobs; the rules that they turn are in `size.rs`.
//! - [`Stats`] are the counters of `torch.cuda.memory_stats`.
//!
//! Reading order: `size`, `device`, `block`, `free_blocks`, `home`, `stats`, then `pool` (a hit and a free), `miss` (what else a request can
//! take), `expandable`, `reclaim` (giving memory back), `streams` (frees that must wait) and `mempool` (private pools).
#![forbid(unsafe_code)]

mod block;
mod conf;
mod device;
mod error;
mod expandable;
mod free_blocks;
mod home;
mod layout;
mod live_blocks;
mod memory_stats;
mod mempool;
mod miss;
mod pool;
mod reclaim;
pub mod rerun;
mod restore;
mod settings;
mod simulated;
pub mod size;
mod stats;
mod streams;
mod summary;

pub use block::BlockState;
pub use conf::{CONF_VARIABLES, ConfError, ConfErrorKind};
pub use device::{Device, DeviceError, DeviceMemory, StreamEvent};
pub use error::{AllocateError, FreeError, MempoolError, OutOfMemory};
pub use layout::{LaidBlock, LaidSegment};
pub use memory_stats::MemoryStats;
pub use mempool::Diverted;
pub use pool::{Allocated, AskForMemory, Origin, Pool};
pub use settings::Settings;
pub use simulated::SimulatedDevice;
pub use size::{MAX_REQUEST_BYTES, MIN_BLOCK_BYTES};
pub use stats::{Stat, StatBySize, Stats};
pub use summary::memory_summary;
