//! GPUs as devices, through cudarc.
//!
//! The pool obtains memory from a [`CudaDevice`]; cudarc accepts a [`PoolSlice`](crate::PoolSlice)
//! of it wherever it accepts a `CudaSlice`. The driver is loaded when a device is opened, so a
//! program built with this also runs on a machine without CUDA, where opening a device is an error.
//!
//! Reading order: `error`, `driver` (the current context), `events`, `pages` (expandable segments),
//! `usage` (memory outside the pool), `device`, `order` (a buffer's uses on several streams),
//! `buffer`, `slice` and `view` (cudarc's traits for whole and partial buffers).

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

/// A pool over a GPU's memory.
pub type CudaPool = DevicePool<CudaDevice>;
