//! Typed memory from the pool.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use vramscope_pool::{AllocateError, DeviceError, FreeError, MIN_BLOCK_BYTES};
use vramscope_trace::MempoolId;

use crate::host::HostDevice;
use crate::memory::{Element, MemoryDevice};
use crate::pool::{DevicePool, Request};

/// Numbers in memory of a [`DevicePool`], to which it returns when dropped. In this machine's memory it is a slice; on a GPU
/// cudarc's copies, launches and libraries take it as they take a `CudaSlice`.
///
/// Why the memory is this slice's own: live blocks of a pool never overlap, and the block is live until the drop. Why it is there:
/// the device keeps a segment's memory until the pool releases it, which the pool does only where no block is live; and the
/// device itself stays until the last handle of the pool is gone, of which this slice has one. Why it is aligned: segments begin at
/// multiples of 2 MiB, blocks in them at multiples of [`MIN_BLOCK_BYTES`], and no [`Element`] asks for more.
pub struct PoolSlice<T: Element, D: MemoryDevice = HostDevice> {
    pool: DevicePool<D>,
    /// Taken out only by the drop.
    buffer: ManuallyDrop<D::Buffer<T>>,
    /// Of the first number; 0 where there is none.
    address: u64,
    len: usize,
    stream: D::Stream,
    /// The line that asked for it, which is also where its free is said to come from: a drop knows no line of its own.
    location: &'static Location<'static>,
}

impl<T: Element, D: MemoryDevice> PoolSlice<T, D> {
    /// Memory for `len` numbers that holds whatever it held before.
    pub(crate) fn new_unset(
        pool: &DevicePool<D>,
        stream: &D::Stream,
        mempool: Option<MempoolId>,
        len: usize,
        location: &'static Location<'static>,
    ) -> Result<Self, AllocateError> {
        const { assert!(align_of::<T>() as u64 <= MIN_BLOCK_BYTES, "blocks lie at multiples of their smallest size") };
        let bytes = len.saturating_mul(size_of::<T>()) as u64;
        let address = pool.allocate(stream, Request { bytes, mempool, location })?.map_or(0, |block| block.address);
        // SAFETY: The block at `address` was just handed out and has at least `bytes` bytes; where `len` is 0 there is none and none
        // is needed. It is this slice's alone, and there until the drop, as the type's documentation argues.
        let buffer = unsafe { D::buffer(stream, address, len) };
        match buffer {
            Ok(buffer) => {
                let buffer = ManuallyDrop::new(buffer);
                Ok(Self { pool: pool.clone(), buffer, address, len, stream: stream.clone(), location })
            }
            Err(error) => {
                if len > 0 {
                    pool.free(address, location);
                }
                Err(error.into())
            }
        }
    }

    /// The pool that the memory is from.
    #[must_use]
    pub fn pool(&self) -> &DevicePool<D> {
        &self.pool
    }

    /// The address of the first number, as events name it; 0 where there are no numbers.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream that it was made on, for whose work its memory is used again once it is dropped.
    #[must_use]
    pub fn stream(&self) -> &D::Stream {
        &self.stream
    }

    /// The memory, as work on the device takes it.
    pub(crate) fn buffer(&self) -> &D::Buffer<T> {
        &self.buffer
    }

    /// The memory, as work on the device takes it.
    pub(crate) fn buffer_mut(&mut self) -> &mut D::Buffer<T> {
        &mut self.buffer
    }

    /// Says that work on `stream` uses the memory. Once it is dropped it is handed out again only when the work that was queued on
    /// `stream` by then is done. Of its own stream this need not be said, nor on a GPU of streams that copies or libraries used it on;
    /// it must be of kernels that read it on several streams at the same time (see [`CudaBuffer`](crate::CudaBuffer)). On a GPU the
    /// stream is kept until the pool is gone.
    ///
    /// # Errors
    /// When the pool can do nothing more, and when it is no stream for the device's memory.
    pub fn record_stream(&self, stream: &D::Stream) -> Result<(), FreeError> {
        if self.is_empty() { Ok(()) } else { self.pool.record_stream(self.address, stream) }
    }

    /// Sets all numbers to zero, in order with the other work on [its stream](Self::stream).
    ///
    /// # Errors
    /// When the device takes no work.
    pub fn set_zero(&mut self) -> Result<(), DeviceError> {
        D::set_zero(&mut self.buffer)
    }

    /// Copies `values`, which are as many as the numbers here, in order with the other work on [its stream](Self::stream).
    ///
    /// # Errors
    /// When the device takes no work.
    ///
    /// # Panics
    /// When they are more or fewer.
    pub fn write(&mut self, values: &[T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), self.len, "as many numbers as there is room for");
        D::write(&mut self.buffer, values)
    }

    /// The numbers, once the work queued on [its stream](Self::stream) before is done.
    ///
    /// # Errors
    /// When the device takes no work or what was queued failed.
    pub fn read(&self) -> Result<Vec<T>, DeviceError>
    where
        T: Default,
    {
        let mut values = vec![T::default(); self.len];
        D::read(&self.buffer, &mut values)?;
        Ok(values)
    }
}

impl<T: Element> Deref for PoolSlice<T, HostDevice> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.buffer.numbers()
    }
}

impl<T: Element> DerefMut for PoolSlice<T, HostDevice> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.buffer.numbers_mut()
    }
}

impl<T: Element, D: MemoryDevice> Drop for PoolSlice<T, D> {
    fn drop(&mut self) {
        // SAFETY: Only this takes the buffer, and nothing looks at it after a drop.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        D::finish(buffer);
        if self.len > 0 {
            self.pool.free(self.address, self.location);
        }
    }
}

impl<T: Element, D: MemoryDevice> fmt::Debug for PoolSlice<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSlice")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
