//! What a training program embeds: memory from the pool, and everything that shows what the pool does.
//!
//! It decides nothing about memory (that is `vramscope-pool`) and nothing about a recording's bytes (that is `vramscope-trace`); it
//! connects both to the operating system: memory, threads, the clock and the network. It is the only crate with `unsafe`.
//!
//! - [`HostPool`] hands out [`PoolSlice`]s of this machine's memory, with [`Scope`]s that say what they are for.
//! - [`Recorder`] writes down what happened, on a thread of its own; a [`RecorderHandle`] is the sink that a pool is given.
//! - [`Hub`] passes a recording on to everyone who watches; [`Server`] is the page and the stream over HTTP.

mod buffer;
mod host;
mod hub;
mod pool;
mod recorder;
mod scope;
mod server;

pub use buffer::{Element, PoolSlice};
pub use host::HostDevice;
pub use hub::{Hub, HubLimits, Viewer};
pub use pool::{HostPool, Span};
pub use recorder::{FileErrorCallback, Outputs, Recorder, RecorderHandle, Summary};
pub use scope::Scope;
pub use server::{Asset, Assets, Content, DEFAULT_PORT, MEDIA_TYPE, Recorded, Server, StartError, page_address};
pub use vramscope_pool::{AllocateError, DeviceError, OutOfMemory, Stats};
