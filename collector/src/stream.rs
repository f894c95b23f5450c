//! A stream whose memory comes from a pool.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;

use vramscope_pool::{AllocateError, DeviceError};
use vramscope_trace::MempoolId;

use crate::buffer::PoolSlice;
use crate::host::HostDevice;
use crate::memory::{Element, MemoryDevice};
use crate::pool::DevicePool;

/// A stream together with the [`DevicePool`] that its buffers come from; created by
/// [`DevicePool::on`].
///
/// The methods that allocate have the names of cudarc's stream methods and use the pool. All other
/// methods are those of the stream itself, through `Deref`. The pool keeps the stream from the
/// first request on, even after this value is dropped.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool, Settings, StreamId};
/// use vramscope_trace::NullSink;
///
/// let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
/// let stream = pool.on(&StreamId(1));
/// let zeros = stream.alloc_zeros::<u8>(1000)?;
/// assert_eq!(zeros.len(), 1000);
/// # Ok::<(), vramscope_collector::AllocateError>(())
/// ```
pub struct PoolStream<D: MemoryDevice> {
    pool: DevicePool<D>,
    stream: D::Stream,
    mempool: Option<MempoolId>,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// Returns `stream` together with this pool, to allocate buffers for work on that stream. The
    /// pool keeps a stream that memory was requested on.
    ///
    /// On a GPU the stream must belong to the same cudarc `CudaContext` object as the pool's
    /// device, otherwise every request on it fails: cudarc does not order the streams of two
    /// context objects, even on one GPU.
    ///
    /// ```
    /// # use vramscope_collector::{HostDevice, HostPool};
    /// # use vramscope_pool::Settings;
    /// use vramscope_trace::{NullSink, StreamId};
    ///
    /// let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
    /// let stream = pool.on(&StreamId(1));
    /// let numbers = stream.clone_htod(&[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(numbers.read(), Ok(vec![1.0, 2.0, 3.0]));
    /// # Ok::<(), vramscope_collector::AllocateError>(())
    /// ```
    #[must_use]
    pub fn on(&self, stream: &D::Stream) -> PoolStream<D> {
        PoolStream { pool: self.clone(), stream: stream.clone(), mempool: None }
    }
}

/// Initializes a new buffer, `allocated`, with `fill`, which writes all of it, and returns the
/// buffer. If `fill` fails, the buffer is freed.
fn filled<T: Element, D: MemoryDevice>(
    allocated: Result<PoolSlice<T, D>, AllocateError>,
    fill: impl FnOnce(&mut D::Buffer<T>) -> Result<(), DeviceError>,
) -> Result<PoolSlice<T, D>, AllocateError> {
    let mut slice = allocated?;
    fill(slice.buffer_mut())?;
    Ok(slice)
}

impl<D: MemoryDevice> PoolStream<D> {
    /// Returns the pool that this stream's buffers come from.
    #[must_use]
    pub fn pool(&self) -> &DevicePool<D> {
        &self.pool
    }

    /// Returns this stream with buffers from the [private pool](DevicePool::create_pool) `mempool`,
    /// even while requests are redirected to another pool.
    #[must_use]
    pub fn with_mempool(self, mempool: MempoolId) -> Self {
        Self { mempool: Some(mempool), ..self }
    }

    /// Allocates memory for `len` elements, for work on this stream, without initializing it.
    /// `location` is the source line of the request.
    fn uninit<T: Element>(
        &self,
        len: usize,
        location: &'static Location<'static>,
    ) -> Result<PoolSlice<T, D>, AllocateError> {
        PoolSlice::new_uninit(&self.pool, &self.stream, self.mempool, len, location)
    }

    /// Allocates `len` elements (not bytes) without initializing them.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    ///
    /// # Safety
    /// The caller must write each element before anything reads it.
    #[track_caller]
    pub unsafe fn alloc<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        self.uninit(len, Location::caller())
    }

    /// Allocates a buffer of `len` zeros, for work on this stream.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn alloc_zeros<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        filled(self.uninit(len, Location::caller()), D::set_zero)
    }

    /// Allocates a buffer with a copy of `values`, for work on this stream.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn clone_htod<T: Element>(&self, values: &[T]) -> Result<PoolSlice<T, D>, AllocateError> {
        let allocated = self.uninit(values.len(), Location::caller());
        filled(allocated, |buffer| D::write(buffer, values))
    }

    /// Allocates a buffer with a copy of `other`, for work on this stream.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn clone_dtod<T: Element>(&self, other: &PoolSlice<T, D>) -> Result<PoolSlice<T, D>, AllocateError> {
        let allocated = self.uninit(other.len(), Location::caller());
        filled(allocated, |buffer| D::copy(other.buffer(), buffer))
    }
}

/// Allocation on the device's default stream.
impl<D: MemoryDevice> DevicePool<D> {
    /// Allocates a buffer of `len` zeros, for work on the device's default stream.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn alloc_zeros<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        filled(PoolSlice::new_uninit(self, self.default_stream(), None, len, Location::caller()), D::set_zero)
    }

    /// Allocates a buffer with a copy of `values`, for work on the device's default stream.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn clone_htod<T: Element>(&self, values: &[T]) -> Result<PoolSlice<T, D>, AllocateError> {
        let allocated = PoolSlice::new_uninit(self, self.default_stream(), None, values.len(), Location::caller());
        filled(allocated, |buffer| D::write(buffer, values))
    }
}

impl DevicePool<HostDevice> {
    /// Allocates a buffer of `len` elements in host memory, each set to `value`.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn full<T: Element>(&self, len: usize, value: T) -> Result<PoolSlice<T>, AllocateError> {
        let mut slice = PoolSlice::new_uninit(self, self.default_stream(), None, len, Location::caller())?;
        slice.fill(value);
        Ok(slice)
    }
}

/// Operations on existing memory, with the names of cudarc's stream methods. On the host they run
/// at once and never fail.
impl PoolStream<HostDevice> {
    /// Sets all elements of `to`, memory on the host, to zero.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    pub fn memset_zeros<T: Element>(&self, to: &mut [T]) -> Result<(), DeviceError> {
        // SAFETY: `to` is exclusively borrowed and has `to.len()` numbers, and `Element` guarantees
        // that zero bytes are a valid number.
        unsafe { std::ptr::write_bytes(to.as_mut_ptr(), 0, to.len()) };
        Ok(())
    }

    /// Copies `from` to the beginning of `to`, both on the host; the rest of `to` stays. Named
    /// after cudarc's copy from host to device.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    ///
    /// # Panics
    /// If `to` is shorter than `from`.
    pub fn memcpy_htod<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }

    /// Copies `from` to the beginning of `to`, both on the host; the rest of `to` stays. Named
    /// after cudarc's copy from device to host.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    ///
    /// # Panics
    /// If `to` is shorter than `from`.
    pub fn memcpy_dtoh<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        self.memcpy_htod(from, to)
    }

    /// Copies `from` to the beginning of `to`, both on the host; the rest of `to` stays. Named
    /// after cudarc's copy from device to device.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    ///
    /// # Panics
    /// If `to` is shorter than `from`.
    pub fn memcpy_dtod<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        self.memcpy_htod(from, to)
    }

    /// Returns a copy of `from`, memory of the host device, as a vector in memory outside the pool.
    /// Has the name of the function for CUDA memory, which copies from the GPU.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    pub fn clone_dtoh<T: Element>(&self, from: &[T]) -> Result<Vec<T>, DeviceError> {
        Ok(from.to_vec())
    }

    /// Does nothing: work on the host has already finished.
    ///
    /// # Errors
    /// Never returns an error; cudarc's function of this name can.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl<D: MemoryDevice> Clone for PoolStream<D> {
    fn clone(&self) -> Self {
        let Self { pool, stream, mempool } = self;
        Self { pool: pool.clone(), stream: stream.clone(), mempool: *mempool }
    }
}

impl<D: MemoryDevice> Deref for PoolStream<D> {
    type Target = D::Stream;

    fn deref(&self) -> &D::Stream {
        &self.stream
    }
}

impl<D: MemoryDevice> fmt::Debug for PoolStream<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, stream, mempool } = self;
        f.debug_struct("PoolStream").field("pool", pool).field("stream", stream).field("mempool", mempool).finish()
    }
}
