//! What a training program embeds: memory from the pool, and everything that shows what the pool does.
//!
//! It decides nothing about memory (that is `vramscope-pool`) and nothing about a recording's bytes (that is `vramscope-trace`); it
//! connects both to the operating system: memory, threads, the clock and the network. It is the only crate with `unsafe`.
//!
//! - [`DevicePool`] hands out [`PoolSlice`]s of a [`MemoryDevice`]'s memory, with [`Scope`]s that say what they are for.
//!   [`HostPool`] is one over this machine's memory.
//! - [`Recorder`] writes down what happened, on a thread of its own; a [`RecorderHandle`] is the sink that a pool is given.
//! - [`Hub`] passes a recording on to everyone who watches; [`Server`] is the page and the stream over HTTP.

mod buffer;
mod host;
mod host_memory;
mod hub;
mod memory;
mod pool;
mod raw;
mod recorder;
mod scope;
mod server;
mod stream;

pub use buffer::PoolSlice;
pub use host::HostDevice;
pub use host_memory::HostBuffer;
pub use hub::{Hub, HubLimits, Viewer};
pub use memory::{DeviceUsage, Element, MemoryDevice};
pub use pool::{DevicePool, HostPool, Span};
pub use recorder::{FileErrorCallback, Outputs, Recorder, RecorderHandle, Summary};
pub use scope::Scope;
pub use server::{Asset, Assets, Content, DEFAULT_PORT, MEDIA_TYPE, Recorded, Server, StartError, page_address};
pub use stream::PoolStream;
pub use vramscope_pool::{AllocateError, DeviceError, FreeError, OutOfMemory, Settings, Stats};
