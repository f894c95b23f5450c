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

/// A stream of a device whose buffers come from a [`DevicePool`]; see [`DevicePool::on`]. The pool keeps the stream from the first
/// request on until the pool itself is gone, also where this is dropped before.
///
/// Everything that makes memory has the name that it has on cudarc's stream and is asked of the pool; for everything else this is the
/// stream itself.
pub struct PoolStream<D: MemoryDevice> {
    pool: DevicePool<D>,
    stream: D::Stream,
    mempool: Option<MempoolId>,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// `stream`, with this pool to make buffers from. A stream that memory is asked for on is kept until the pool is gone. On a GPU
    /// it must be of the [`CudaContext`](cudarc::driver::CudaContext) object that the pool's device has, else every request on it is
    /// refused: two such objects keep no order between their streams, not even those of one GPU.
    ///
    /// ```
    /// # use vramscope_collector::{HostDevice, HostPool};
    /// # use vramscope_pool::Settings;
    /// use vramscope_trace::{NullSink, StreamId};
    ///
    /// let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), Null, || 0);
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

/// Makes memory and has `fill` write all of it; what `fill` fails with goes to the caller and the memory back to the pool.
fn filled<T: Element, D: MemoryDevice>(
    made: Result<PoolSlice<T, D>, AllocateError>,
    fill: impl FnOnce(&mut D::Buffer<T>) -> Result<(), DeviceError>,
) -> Result<PoolSlice<T, D>, AllocateError> {
    let mut slice = made?;
    fill(slice.buffer_mut())?;
    Ok(slice)
}

impl<D: MemoryDevice> PoolStream<D> {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &DevicePool<D> {
        &self.pool
    }

    /// The same stream, with buffers that come from a private pool, which somebody has
    /// [created](DevicePool::create_pool), whatever is diverted elsewhere.
    #[must_use]
    pub fn with_mempool(self, mempool: MempoolId) -> Self {
        Self { mempool: Some(mempool), ..self }
    }

    fn unset<T: Element>(
        &self,
        len: usize,
        location: &'static Location<'static>,
    ) -> Result<PoolSlice<T, D>, AllocateError> {
        PoolSlice::new_unset(&self.pool, &self.stream, self.mempool, len, location)
    }

    /// Memory for `len` numbers, which hold whatever was there before.
    ///
    /// # Errors
    /// When there is no room for them.
    ///
    /// # Safety
    /// Nothing reads a number before it was written.
    #[track_caller]
    pub unsafe fn alloc<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        self.unset(len, Location::caller())
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn alloc_zeros<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        filled(self.unset(len, Location::caller()), D::set_zero)
    }

    /// The same numbers as `values`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn clone_htod<T: Element>(&self, values: &[T]) -> Result<PoolSlice<T, D>, AllocateError> {
        let made = self.unset(values.len(), Location::caller());
        filled(made, |buffer| D::write(buffer, values))
    }

    /// The same numbers as `other`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn clone_dtod<T: Element>(&self, other: &PoolSlice<T, D>) -> Result<PoolSlice<T, D>, AllocateError> {
        let made = self.unset(other.len(), Location::caller());
        filled(made, |buffer| D::copy(other.buffer(), buffer))
    }
}

/// The same, on the stream that the device uses where none is named.
impl<D: MemoryDevice> DevicePool<D> {
    /// `len` zeros.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn alloc_zeros<T: Element>(&self, len: usize) -> Result<PoolSlice<T, D>, AllocateError> {
        filled(PoolSlice::new_unset(self, self.default_stream(), None, len, Location::caller()), D::set_zero)
    }

    /// The same numbers as `values`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn clone_htod<T: Element>(&self, values: &[T]) -> Result<PoolSlice<T, D>, AllocateError> {
        let made = PoolSlice::new_unset(self, self.default_stream(), None, values.len(), Location::caller());
        filled(made, |buffer| D::write(buffer, values))
    }
}

impl DevicePool<HostDevice> {
    /// `len` times `value`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn full<T: Element>(&self, len: usize, value: T) -> Result<PoolSlice<T>, AllocateError> {
        let mut slice = PoolSlice::new_unset(self, self.default_stream(), None, len, Location::caller())?;
        slice.fill(value);
        Ok(slice)
    }
}

/// The names that cudarc's stream has for what works on memory that is there; on the host they work at once.
impl PoolStream<HostDevice> {
    /// Sets all of `to` to zero.
    ///
    /// # Errors
    /// None on the host.
    pub fn memset_zeros<T: Element>(&self, to: &mut [T]) -> Result<(), DeviceError> {
        // SAFETY: `to` is `to.len()` numbers, exclusively borrowed; zero bytes are a value of every `Element`.
        unsafe { std::ptr::write_bytes(to.as_mut_ptr(), 0, to.len()) };
        Ok(())
    }

    /// Copies `from` into the beginning of `to`.
    ///
    /// # Errors
    /// None on the host.
    ///
    /// # Panics
    /// When `to` is shorter.
    pub fn memcpy_htod<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        to[..from.len()].copy_from_slice(from);
        Ok(())
    }

    /// As [`memcpy_htod`](Self::memcpy_htod).
    ///
    /// # Errors
    /// None on the host.
    ///
    /// # Panics
    /// When `to` is shorter.
    pub fn memcpy_dtoh<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        self.memcpy_htod(from, to)
    }

    /// As [`memcpy_htod`](Self::memcpy_htod).
    ///
    /// # Errors
    /// None on the host.
    ///
    /// # Panics
    /// When `to` is shorter.
    pub fn memcpy_dtod<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<(), DeviceError> {
        self.memcpy_htod(from, to)
    }

    /// A copy of `from` outside the pool.
    ///
    /// # Errors
    /// None on the host.
    pub fn clone_dtoh<T: Element>(&self, from: &[T]) -> Result<Vec<T>, DeviceError> {
        Ok(from.to_vec())
    }

    /// Does nothing: on the host no work is left undone.
    ///
    /// # Errors
    /// None on the host.
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
