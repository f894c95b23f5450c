//! The interface between a pool and the memory of a device.

use std::fmt;

use vramscope_pool::{Device, DeviceError};
use vramscope_trace::{DeviceInfo, StreamId};

mod sealed {
    /// Keeps other crates from implementing [`Element`](super::Element).
    pub trait Sealed {}
}

/// A number type that a [`PoolSlice`](crate::PoolSlice) can hold.
///
/// The trait is sealed, because unsafe code relies on its types: any bytes are a valid value, and
/// values need no drop. `f16` and `bf16` are the types of the `half` crate, as in
/// cudarc.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {}

macro_rules! elements {
    ($($number:ty)*) => { $(
        impl sealed::Sealed for $number {}
        impl Element for $number {}
    )* };
}

elements!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 usize isize f32 f64);
#[cfg(feature = "half")]
elements!(half::f16 half::bf16);

/// A device whose memory can be allocated from a [`DevicePool`](crate::DevicePool) and read and
/// written through a [`PoolSlice`](crate::PoolSlice).
///
/// [`HostDevice`](crate::HostDevice) and `CudaDevice` implement it. Another device can wrap one of
/// them: see `examples/custom_device.rs`.
///
/// The pool calls methods that take `self` while it holds its lock. It calls the others, which
/// concern one buffer, without the lock, because a copy may take long.
///
/// # Safety
/// Buffers give safe access to memory, so an implementation guarantees:
///
/// - [`reserve`](Device::reserve) and [`map`](Device::map) return memory that is usable until it is
///   released or unmapped and that nothing else uses;
/// - after [`set_zero`](Self::set_zero), [`write`](Self::write) or [`copy`](Self::copy) succeeds,
///   the whole buffer is initialized for work that follows on its stream;
/// - no method touches memory outside the buffer it is given.
pub unsafe trait MemoryDevice: Device + Send + Sized + 'static {
    /// A queue of work on the device. Work in one queue runs in order.
    type Stream: Clone + fmt::Debug + Send + Sync + 'static;

    /// The memory of one buffer. It does not own the memory; the
    /// [`PoolSlice`](crate::PoolSlice) around it does.
    type Buffer<T: Element>: Send + Sync;

    /// Returns the device's description for a recording's header.
    fn info(&self) -> DeviceInfo;

    /// Returns the stream for requests that do not name a stream.
    fn default_stream(&self) -> Self::Stream;

    /// Returns the number that identifies `stream` in events and requests, and remembers which
    /// stream it means.
    ///
    /// # Errors
    /// If the stream cannot be used with this device's memory.
    fn stream_id(&mut self, stream: &Self::Stream) -> Result<StreamId, DeviceError>;

    /// Returns how much of the device's memory this process and others hold, or `None` if the
    /// device cannot tell processes apart.
    fn usage(&mut self) -> Option<DeviceUsage>;

    /// Creates the buffer of the `len` numbers at `address`, for work on `stream`. If `len` is 0,
    /// the address is ignored.
    ///
    /// # Errors
    /// If the device cannot keep track of another buffer.
    ///
    /// # Safety
    /// The caller guarantees that the `len` numbers are in one piece of memory of this device, from
    /// [`reserve`](Device::reserve) or [`map`](Device::map), and that `address` is a multiple of
    /// 512. Until the buffer is [finished](Self::finish), the memory is not released or unmapped,
    /// and nothing else uses it, except work queued on `stream` before.
    unsafe fn buffer<T: Element>(
        stream: &Self::Stream,
        address: u64,
        len: usize,
    ) -> Result<Self::Buffer<T>, DeviceError>;

    /// Sets the whole buffer to zero, in order with other work on its stream.
    ///
    /// # Errors
    /// If the device rejects the work.
    fn set_zero<T: Element>(buffer: &mut Self::Buffer<T>) -> Result<(), DeviceError>;

    /// Copies `values` into the buffer, in order with other work on its stream. `values` may be
    /// changed after the call.
    ///
    /// # Errors
    /// If the device rejects the work.
    ///
    /// # Panics
    /// If `values` and the buffer have different lengths.
    fn write<T: Element>(buffer: &mut Self::Buffer<T>, values: &[T]) -> Result<(), DeviceError>;

    /// Copies the buffer into `values`, after the work queued on its stream so far has finished.
    ///
    /// # Errors
    /// If the device rejects the work or earlier work failed.
    ///
    /// # Panics
    /// If `values` and the buffer have different lengths.
    fn read<T: Element>(buffer: &Self::Buffer<T>, values: &mut [T]) -> Result<(), DeviceError>;

    /// Copies the buffer `from` into the buffer `to`, in order with other work on the stream of
    /// `to` and after the work that wrote `from`.
    ///
    /// # Errors
    /// If the device rejects the work.
    ///
    /// # Panics
    /// If the buffers have different lengths.
    fn copy<T: Element>(from: &Self::Buffer<T>, to: &mut Self::Buffer<T>) -> Result<(), DeviceError>;

    /// Ends a buffer, just before its block returns to the pool. Work queued on its stream from now
    /// on runs after all uses of the buffer, including those on other streams that only the device
    /// has seen, such as copies and libraries.
    fn finish<T: Element>(buffer: Self::Buffer<T>);
}

/// How many bytes of a device's memory this process holds, other processes hold, and are free,
/// according to its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Bytes held by this process: the pool's segments, CUDA context, modules and libraries.
    pub process_bytes: u64,
    /// Bytes held by other processes.
    pub other_processes_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}
