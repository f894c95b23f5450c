//! A GPU as a device, through cudarc.
//!
//! [`CudaDevice`] is what the pool asks for memory; a [`PoolSlice`](crate::PoolSlice) of it goes wherever cudarc takes a `CudaSlice`.
//! The driver is loaded when a device is opened: a program built with this runs on a machine without CUDA, where opening one is an
//! error that says so.
//!
//! Reading order: `error`, `driver` (being in a context), `events`, `pages` (expandable segments), `usage` (what is held outside the
//! pool), `device`, `buffer` (a buffer's memory and its uses on several streams), `slice` (what cudarc sees of a `PoolSlice`).

mod buffer;
mod device;
mod driver;
mod error;
mod events;
mod pages;
mod slice;
mod usage;

use crate::pool::DevicePool;

pub use buffer::CudaBuffer;
pub use device::CudaDevice;
pub use error::CudaError;

/// A pool over the memory of a GPU.
pub type CudaPool = DevicePool<CudaDevice>;
