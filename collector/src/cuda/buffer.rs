//! The memory of one buffer on a GPU and its uses on several streams.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, result, sys};
use vramscope_pool::DeviceError;
use vramscope_trace::{DeviceInfo, StreamId};

use super::device::CudaDevice;
use super::error::of_call;
use super::order::{TrackedSlice, synchronize_if_unordered};
use crate::memory::{DeviceUsage, Element, MemoryDevice};

/// The memory of one buffer on a GPU.
///
/// Work on several streams is ordered by CUDA events, as cudarc does for a `CudaSlice`: a read
/// waits for the last write, a write for earlier reads and writes. While the context has only its
/// default stream, nothing needs ordering and the buffer has no events. The first use after that
/// creates them, which takes most of the time that ordering costs. After the drop, the buffer's own
/// stream waits for all uses before the memory is reused.
///
/// This covers copies and libraries on any number of streams, the last kernel that reads and the
/// last that writes. It does not cover what cudarc does not report:
///
/// - Of kernels that read on several streams at the same time, later work waits only for the last
///   launched, as with cudarc's slices. Report the others with
///   [`PoolSlice::record_stream`](crate::PoolSlice::record_stream). A launch is `unsafe`, and this
///   is one of its conditions.
/// - A kernel on a stream of another `CudaContext` is not ordered at all. Copies there are: the
///   program waits for them.
/// - cudarc's `memcpy_dtod` to another device may read late; finish it before the source is written
///   or dropped. `PoolStream::clone_dtod` waits for it.
/// - After `CudaContext::disable_event_tracking`, which is `unsafe`, nothing is ordered.
#[derive(Debug)]
pub struct CudaBuffer<T> {
    /// The stream that the buffer was allocated on. After the free, the memory is reused for work
    /// on this stream.
    stream: Arc<CudaStream>,
    address: sys::CUdeviceptr,
    len: usize,
    /// Created at the first use that needs ordering.
    tracked: OnceLock<TrackedSlice<T>>,
}

impl<T> CudaBuffer<T> {
    /// Returns true if cudarc orders work on the context's streams by events: the context has had
    /// several streams, and event tracking is on. If false, cudarc orders nothing.
    pub(super) fn is_tracking(&self) -> bool {
        self.stream.context().is_managing_stream_synchronization()
    }

    /// Returns the device address of the first number, by reference, as a kernel argument needs it.
    pub(super) fn address(&self) -> &sys::CUdeviceptr {
        &self.address
    }

    /// Returns the memory as a cudarc slice with the events of its uses, creating it at the first
    /// call.
    pub(super) fn tracked(&self) -> &TrackedSlice<T> {
        // SAFETY: The caller of `CudaDevice::buffer` guarantees `len` numbers of memory at
        // `address` until the buffer is finished, which ends the slice too; any bytes are valid
        // numbers, because only an `Element` has a buffer.
        self.tracked.get_or_init(|| unsafe { TrackedSlice::new(&self.stream, self.address, self.len) })
    }

    /// Returns the memory mutably as a cudarc slice with the events of its uses, creating it at the
    /// first call.
    pub(super) fn tracked_mut(&mut self) -> &mut TrackedSlice<T> {
        self.tracked();
        self.tracked.get_mut().expect("`tracked`, called above, creates the slice")
    }

    /// Returns the memory as a cudarc slice with the events of its uses, if an earlier use created
    /// it; `None` means that no use needs ordering.
    pub(super) fn already_tracked(&self) -> Option<&TrackedSlice<T>> {
        self.tracked.get()
    }

    /// Returns, as separate borrows, the address of the first number, the buffer's stream, and the
    /// memory mutably as a cudarc slice with the events of its uses.
    pub(super) fn parts_mut(&mut self) -> (sys::CUdeviceptr, &Arc<CudaStream>, &mut TrackedSlice<T>) {
        self.tracked();
        let tracked = self.tracked.get_mut().expect("`tracked`, called above, creates the slice");
        (self.address, &self.stream, tracked)
    }

    /// Returns the size of the buffer in bytes.
    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> DeviceSlice<T> for CudaBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for CudaBuffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let read = synchronize_if_unordered(&self.stream, stream).unwrap_or_else(|| {
            let tracked = if self.is_tracking() { Some(self.tracked()) } else { self.already_tracked() };
            tracked.map_or(SyncOnDrop::Record(None), |tracked| tracked.order.read_on(stream))
        });
        (self.address, read)
    }
}

impl<T> DevicePtrMut<T> for CudaBuffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let address = self.address;
        if let Some(written) = synchronize_if_unordered(&self.stream, stream) {
            return (address, written);
        }
        // While only its own stream uses the buffer, nothing needs ordering. Work queued now counts
        // as a write when the events are created, so initializing new memory needs no events.
        let is_first = self.tracked.get().is_none() && *stream == *self.stream;
        if is_first || self.tracked.get().is_none() && !self.is_tracking() {
            return (address, SyncOnDrop::Record(None));
        }
        let tracked = self.tracked_mut();
        tracked.order.wait_for_uses(stream);
        (address, tracked.slice.device_ptr_mut(stream).1)
    }
}

// SAFETY: The driver guarantees that its allocations and mapped pages do not overlap and stay until
// they are freed or unmapped. `set_zero`, `write` and `copy` queue work on the buffer's stream that
// fills the whole buffer. Every access is bounded by the buffer's length.
unsafe impl MemoryDevice for CudaDevice {
    type Stream = Arc<CudaStream>;
    type Buffer<T: Element> = CudaBuffer<T>;

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            device: u16::try_from(self.context().ordinal()).unwrap_or(u16::MAX),
            name: self.name().to_owned(),
            total_bytes: self.total_bytes(),
            history_complete: true,
            ..DeviceInfo::default()
        }
    }

    fn default_stream(&self) -> Arc<CudaStream> {
        self.context().default_stream()
    }

    fn stream_id(&mut self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceError> {
        self.keep(stream)
    }

    fn usage(&mut self) -> Option<DeviceUsage> {
        Some(self.sample())
    }

    // SAFETY: This only stores the address. Copies, kernels and `tracked` rely on the guarantees
    // that the caller gives here.
    unsafe fn buffer<T: Element>(
        stream: &Arc<CudaStream>,
        address: u64,
        len: usize,
    ) -> Result<CudaBuffer<T>, DeviceError> {
        Ok(CudaBuffer { stream: Arc::clone(stream), address, len, tracked: OnceLock::new() })
    }

    fn set_zero<T: Element>(buffer: &mut CudaBuffer<T>) -> Result<(), DeviceError> {
        let (stream, bytes) = (Arc::clone(&buffer.stream), buffer.bytes());
        if bytes == 0 {
            return Ok(());
        }
        bind(&stream)?;
        let (address, _written) = buffer.device_ptr_mut(&stream);
        // SAFETY: The caller of `CudaDevice::buffer` guarantees that many bytes at that address,
        // and `&mut` excludes other uses; `Element` guarantees that zeros are valid numbers.
        let set = unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) };
        Ok(of_call("cuMemsetD8Async", set)?)
    }

    fn write<T: Element>(buffer: &mut CudaBuffer<T>, values: &[T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), buffer.len, "source and buffer have different lengths");
        if values.is_empty() {
            return Ok(());
        }
        let stream = Arc::clone(&buffer.stream);
        bind(&stream)?;
        let (address, written) = buffer.device_ptr_mut(&stream);
        // SAFETY: The buffer has room for the numbers, whose count was checked above; `values` is
        // borrowed until the copy has finished, for which `wait` waits below.
        let copied = unsafe { result::memcpy_htod_async(address, values, stream.cu_stream()) };
        drop(written);
        of_call("cuMemcpyHtoDAsync", copied)?;
        // The driver buffers pageable memory before it returns, but reads pinned memory later.
        wait(&stream)
    }

    fn read<T: Element>(buffer: &CudaBuffer<T>, values: &mut [T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), buffer.len, "buffer and destination have different lengths");
        if values.is_empty() {
            return Ok(());
        }
        let stream = &buffer.stream;
        bind(stream)?;
        let (address, read) = buffer.device_ptr(stream);
        // SAFETY: `values` has room for the buffer's numbers, whose count was checked above, and is
        // borrowed until the copy has finished, for which `wait` waits below. `Element` guarantees
        // that any bytes are valid numbers.
        let copied = unsafe { result::memcpy_dtoh_async(values, address, stream.cu_stream()) };
        drop(read);
        of_call("cuMemcpyDtoHAsync", copied)?;
        wait(stream)
    }

    fn copy<T: Element>(from: &CudaBuffer<T>, to: &mut CudaBuffer<T>) -> Result<(), DeviceError> {
        assert_eq!(from.len, to.len, "source and destination have different lengths");
        if from.len == 0 {
            return Ok(());
        }
        let stream = Arc::clone(&to.stream);
        bind(&stream)?;
        of_call("cuMemcpyDtoDAsync", stream.memcpy_dtod(from, to))?;
        // Nothing else keeps the source on another device alive until it has been read.
        if from.stream.context() == stream.context() { Ok(()) } else { wait(&stream) }
    }

    /// Makes the buffer's stream wait for uses on other streams, as dropping a `CudaSlice` does.
    fn finish<T: Element>(buffer: CudaBuffer<T>) {
        if let Some(tracked) = buffer.tracked.into_inner() {
            tracked.finish();
        }
    }
}

/// Makes the stream's context current on this thread, as the driver's calls for copies require.
fn bind(stream: &CudaStream) -> Result<(), DeviceError> {
    Ok(of_call("cuCtxSetCurrent", stream.context().bind_to_thread())?)
}

/// Blocks this thread until the work queued on `stream` has finished.
fn wait(stream: &CudaStream) -> Result<(), DeviceError> {
    Ok(of_call("cuStreamSynchronize", stream.synchronize())?)
}
