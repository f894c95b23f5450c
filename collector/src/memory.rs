//! What a device must do beside lending memory, so that a program can keep numbers in it.

use std::fmt;

use half::{bf16, f16};
use vramscope_pool::{Device, DeviceError};
use vramscope_trace::{DeviceInfo, StreamId};

/// Keeps devices and numbers to those that this crate knows: the unsafe code here relies on what they do.
pub(crate) mod sealed {
    /// Implemented in this crate alone.
    pub trait Sealed {}
}

/// A number that a [`PoolSlice`](crate::PoolSlice) may hold. The trait is sealed: that zero bytes are a value, that any bytes are one,
/// and that there is nothing to drop, is what the unsafe code here relies on. The two of 16 bits are those that cudarc takes, too.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {}

macro_rules! elements {
    ($($number:ty)*) => { $(
        impl sealed::Sealed for $number {}
        impl Element for $number {}
    )* };
}

elements!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 usize isize f16 bf16 f32 f64);

/// A device in whose memory a program can keep numbers: [`HostDevice`](crate::HostDevice), and a GPU through cudarc.
///
/// A pool calls the methods that take `self` under its lock. The others concern one buffer and are called without it, since a copy
/// may take long.
pub trait MemoryDevice: Device + sealed::Sealed + Send + Sized + 'static {
    /// A queue of work on the device, as programs for it name one. What stands in one queue is done in order.
    type Stream: Clone + fmt::Debug + Send + Sync + 'static;

    /// The memory of one buffer, as work on the device takes it. It does not own the memory: a [`PoolSlice`](crate::PoolSlice) does.
    type Buffer<T: Element>: Send + Sync;

    /// What a recording says of the device before its first event.
    fn info(&self) -> DeviceInfo;

    /// The stream that is used where the program names none.
    fn default_stream(&self) -> Self::Stream;

    /// The number of `stream` in events and requests. From now on the device knows which stream the number means.
    ///
    /// # Errors
    /// When it is no stream for the device's memory.
    fn stream_id(&mut self, stream: &Self::Stream) -> Result<StreamId, DeviceError>;

    /// What the driver says of the device's memory as a whole, where it tells programs apart.
    fn usage(&mut self) -> Option<DeviceUsage>;

    /// The buffer of the `len` numbers at `address`, for work on `stream`. Where `len` is 0, the address means nothing.
    ///
    /// # Errors
    /// When the device has no room for what it keeps of a buffer.
    ///
    /// # Safety
    /// The numbers' memory is the device's and is aligned to 512 bytes. Until the buffer is [finished](Self::finish) nothing else
    /// uses it, but for work that was queued on `stream` before.
    unsafe fn buffer<T: Element>(
        stream: &Self::Stream,
        address: u64,
        len: usize,
    ) -> Result<Self::Buffer<T>, DeviceError>;

    /// Sets all of it to zero, in order with the other work on its stream.
    ///
    /// # Errors
    /// When the device takes no work.
    fn set_zero<T: Element>(buffer: &mut Self::Buffer<T>) -> Result<(), DeviceError>;

    /// Copies as many numbers into it as it holds, in order with the other work on its stream; `values` may be changed on return.
    ///
    /// # Errors
    /// When the device takes no work.
    ///
    /// # Panics
    /// When the numbers are more or fewer.
    fn write<T: Element>(buffer: &mut Self::Buffer<T>, values: &[T]) -> Result<(), DeviceError>;

    /// Copies all of it out, once the work queued on its stream before is done.
    ///
    /// # Errors
    /// When the device takes no work or what was queued failed.
    ///
    /// # Panics
    /// When `values` has room for more or fewer.
    fn read<T: Element>(buffer: &Self::Buffer<T>, values: &mut [T]) -> Result<(), DeviceError>;

    /// Copies all of `from` into `to`, which is as long, in order with the other work on the stream of `to` and after the work that
    /// wrote `from`.
    ///
    /// # Errors
    /// When the device takes no work.
    ///
    /// # Panics
    /// When one is longer.
    fn copy<T: Element>(from: &Self::Buffer<T>, to: &mut Self::Buffer<T>) -> Result<(), DeviceError>;

    /// The end of a buffer, just before its block goes back to the pool: what is queued on its stream from now on comes after all
    /// uses of the buffer that the device knows of and the pool was not told of.
    fn finish<T: Element>(buffer: Self::Buffer<T>);
}

/// What a driver says of its device's memory as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Bytes held by this process: the pool's segments, and what the context, modules and libraries hold beside them.
    pub process_bytes: u64,
    /// Bytes held by other processes.
    pub other_processes_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
}
