//! A GPU as a device, through cudarc.
//!
//! [`CudaDevice`] is what the pool asks for memory; a [`PoolSlice`](crate::PoolSlice) of it goes wherever cudarc takes a `CudaSlice`.
//! The driver is loaded when a device is opened: a program built with this runs on a machine without CUDA, where opening one is an
//! error that says so.
//!
//! Reading order: `error`, `driver` (being in a context), `events`, `pages` (expandable segments), `usage` (what is held outside the
//! pool), `device`, `order` (a buffer's uses on several streams), `buffer` (its memory), `slice` (what cudarc sees of a `PoolSlice`), `view`
//! (and of a part of one).

mod buffer;
mod device;
mod driver;
mod error;
mod events;
mod order;
mod pages;
mod slice;
mod usage;
mod view;

use crate::pool::DevicePool;

pub use buffer::CudaBuffer;
pub use device::CudaDevice;
pub use error::CudaError;
pub use view::{PoolView, PoolViewMut};

/// A pool over the memory of a GPU.
pub type CudaPool = DevicePool<CudaDevice>;
