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

/// A buffer of numbers in memory from a [`DevicePool`]. Dropping it frees the memory.
///
/// On the host it dereferences to a slice. On a GPU, cudarc's copies, kernel launches and libraries
/// accept it like a `CudaSlice`.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool, Settings};
/// use vramscope_trace::NullSink;
///
/// let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
/// let mut buffer = pool.clone_htod(&[1.0_f32, 2.0])?;
/// buffer[1] = 3.0;
/// assert_eq!((buffer.len(), buffer.read()?), (2, vec![1.0, 3.0]));
/// # Ok::<(), vramscope_collector::AllocateError>(())
/// ```
// Why access is sound. Exclusive: live blocks of a pool never overlap, and this block is live until
// the drop; callers of `caching_allocator_delete` guarantee not to free it. Valid: the device keeps
// a segment until the pool releases it, which the pool does only when no block of it is live; the
// device lives as long as the pool, and this holds a handle of the pool. Aligned: blocks begin at
// multiples of `MIN_BLOCK_BYTES`, and no `Element` needs more.
pub struct PoolSlice<T: Element, D: MemoryDevice = HostDevice> {
    pool: DevicePool<D>,
    /// The device's handle of the memory. Only `drop` takes it.
    buffer: ManuallyDrop<D::Buffer<T>>,
    /// Address of the first number; 0 if there are no numbers.
    address: u64,
    len: usize,
    stream: D::Stream,
    /// Source location of the request. The free is attributed to this line, because `drop` cannot
    /// know its caller's.
    location: &'static Location<'static>,
}

impl<T: Element, D: MemoryDevice> PoolSlice<T, D> {
    /// Allocates memory for `len` numbers, for work on `stream`, without initializing it. `mempool`
    /// names a private pool to use; with `None`, redirected requests and the default pool apply.
    /// `location` is the source line of the request.
    pub(crate) fn new_uninit(
        pool: &DevicePool<D>,
        stream: &D::Stream,
        mempool: Option<MempoolId>,
        len: usize,
        location: &'static Location<'static>,
    ) -> Result<Self, AllocateError> {
        const { assert!(align_of::<T>() as u64 <= MIN_BLOCK_BYTES, "blocks are aligned to the smallest block size") };
        let bytes = len.saturating_mul(size_of::<T>()) as u64;
        let address = pool.allocate(stream, Request { bytes, mempool, location })?.map_or(0, |block| block.address);
        // SAFETY: The pool has just allocated the block at `address` with at least `bytes` bytes,
        // and guarantees that it is exclusive and valid until `drop` frees it, after finishing the
        // buffer; see the comment at the type. If `len` is 0, the device ignores the address.
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

    /// Returns the pool that the memory belongs to.
    #[must_use]
    pub fn pool(&self) -> &DevicePool<D> {
        &self.pool
    }

    /// Returns the memory address of the first number, as in recorded events; 0 if the buffer is
    /// empty.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of elements (not bytes).
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the stream that the buffer was allocated on. After the drop, its memory is reused
    /// for work on this stream.
    #[must_use]
    pub fn stream(&self) -> &D::Stream {
        &self.stream
    }

    /// Returns the device's handle of this memory, through which it is read and copied.
    pub(crate) fn buffer(&self) -> &D::Buffer<T> {
        &self.buffer
    }

    /// Returns the device's handle of this memory, through which it is written.
    pub(crate) fn buffer_mut(&mut self) -> &mut D::Buffer<T> {
        &mut self.buffer
    }

    /// Records that work on `stream` uses the memory, as `torch.Tensor.record_stream` does.
    ///
    /// After the drop, the memory is reused only when the work queued on `stream` by then has
    /// finished. This is not needed for the buffer's own stream and, on a GPU, for streams on which
    /// copies or libraries used the buffer. It is needed for kernels that read it on several
    /// streams at the same time; see [`CudaBuffer`](crate::CudaBuffer). On a GPU the stream is kept
    /// until the pool is dropped.
    ///
    /// # Errors
    /// If the pool is poisoned by a panic, or the stream cannot be used with the device's memory.
    pub fn record_stream(&self, stream: &D::Stream) -> Result<(), FreeError> {
        if self.is_empty() { Ok(()) } else { self.pool.record_stream(self.address, stream) }
    }

    /// Sets all elements to zero, in order with other work on [its stream](Self::stream).
    ///
    /// # Errors
    /// If the device rejects the work.
    pub fn set_zero(&mut self) -> Result<(), DeviceError> {
        D::set_zero(&mut self.buffer)
    }

    /// Copies `values` into the buffer, in order with other work on [its stream](Self::stream).
    ///
    /// # Errors
    /// If the device rejects the work.
    ///
    /// # Panics
    /// If `values` and the buffer have different lengths.
    pub fn write(&mut self, values: &[T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), self.len, "source and buffer have different lengths");
        D::write(&mut self.buffer, values)
    }

    /// Copies the elements to a new vector on the host, after the work queued on [its
    /// stream](Self::stream) so far has finished.
    ///
    /// # Errors
    /// If the device rejects the work or earlier work failed.
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
        // SAFETY: Only `drop` takes the buffer, `drop` runs once, and no method runs after it.
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
