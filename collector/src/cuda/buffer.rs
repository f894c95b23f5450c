//! Numbers in a GPU's memory, and their uses on several streams.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, result, sys};
use vramscope_pool::DeviceError;
use vramscope_trace::{DeviceInfo, StreamId};

use super::device::CudaDevice;
use super::error::refused;
use super::order::{Tracked, waits_for};
use crate::memory::{DeviceUsage, Element, MemoryDevice, sealed};

/// The memory of one buffer on a GPU.
///
/// Work on several streams is kept in order by events, as cudarc keeps it for a `CudaSlice`: what reads waits for the last that wrote,
/// and what writes for those that read and wrote. While the context has only its default stream there is nothing to keep in order, and
/// the events are made at the first use after that; they are most of what it costs. Once the buffer is dropped, its own stream waits
/// for all of them before the memory is used again.
///
/// That covers every use by copies and libraries, which tell their stream, on however many streams they are, and the last kernel that
/// reads and the last that writes. It does not cover what cudarc does not tell:
///
/// * Of kernels that read on several streams at the same time only the last to be launched is waited for, as with cudarc's slices. For
///   the others, [`PoolSlice::record_stream`](crate::PoolSlice::record_stream) says that they take longer. A launch is `unsafe`: who
///   launches answers for that.
/// * A kernel on a stream of another `CudaContext` is not kept in order at all. Copies there are: the program waits for them.
/// * cudarc's own `memcpy_dtod` to another device reads when it may, which is to be done before the source is written or dropped.
///   `PoolStream::clone_dtod` waits for it.
/// * After `CudaContext::disable_event_tracking`, which is `unsafe`, nothing is kept in order.
#[derive(Debug)]
pub struct CudaBuffer<T> {
    /// The stream that the memory was asked for on, and for whose work it is used again.
    stream: Arc<CudaStream>,
    address: sys::CUdeviceptr,
    len: usize,
    tracked: OnceLock<Tracked<T>>,
}

impl<T> CudaBuffer<T> {
    /// Whether cudarc keeps the context's streams in order with each other.
    pub(super) fn is_tracking(&self) -> bool {
        self.stream.context().is_managing_stream_synchronization()
    }

    /// The address of the first number, for as long as the buffer.
    pub(super) fn address(&self) -> &sys::CUdeviceptr {
        &self.address
    }

    /// The same memory as cudarc's own, and the events of its uses.
    pub(super) fn tracked(&self) -> &Tracked<T> {
        // SAFETY: Whoever made this buffer guarantees memory for `len` numbers at `address`, of which any bytes are values.
        self.tracked.get_or_init(|| unsafe { Tracked::new(&self.stream, self.address, self.len) })
    }

    pub(super) fn tracked_mut(&mut self) -> &mut Tracked<T> {
        self.tracked();
        self.tracked.get_mut().expect("it was just made")
    }

    /// The same where something was kept in order already.
    pub(super) fn already_tracked(&self) -> Option<&Tracked<T>> {
        self.tracked.get()
    }

    /// The address of the first number, the buffer's stream, and what it is kept in order by.
    pub(super) fn parts_mut(&mut self) -> (sys::CUdeviceptr, &Arc<CudaStream>, &mut Tracked<T>) {
        self.tracked();
        (self.address, &self.stream, self.tracked.get_mut().expect("it was just made"))
    }

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
        let read = waits_for(&self.stream, stream).unwrap_or_else(|| {
            let tracked = if self.is_tracking() { Some(self.tracked()) } else { self.already_tracked() };
            tracked.map_or(SyncOnDrop::Record(None), |tracked| tracked.order.read_on(stream))
        });
        (self.address, read)
    }
}

impl<T> DevicePtrMut<T> for CudaBuffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let address = self.address;
        if let Some(written) = waits_for(&self.stream, stream) {
            return (address, written);
        }
        // As long as only its own stream uses it, with nobody else looking, there is nothing to wait for; what the stream is given now
        // counts as written when the events are made. So memory that is set when it is made needs none.
        let is_first = self.tracked.get().is_none() && *stream == *self.stream;
        if is_first || self.tracked.get().is_none() && !self.is_tracking() {
            return (address, SyncOnDrop::Record(None));
        }
        let tracked = self.tracked_mut();
        tracked.order.settle_on(stream);
        (address, tracked.slice.device_ptr_mut(stream).1)
    }
}

impl sealed::Sealed for CudaDevice {}

impl MemoryDevice for CudaDevice {
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

    // SAFETY: What the caller guarantees is what the work on the buffer relies on.
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
        // SAFETY: The buffer has that many bytes at that address, and zeros are values of every `Element`.
        let set = unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) };
        set.map_err(|error| refused("cuMemsetD8Async", error))
    }

    fn write<T: Element>(buffer: &mut CudaBuffer<T>, values: &[T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), buffer.len, "as many numbers as there is room for");
        if values.is_empty() {
            return Ok(());
        }
        let stream = Arc::clone(&buffer.stream);
        bind(&stream)?;
        let (address, written) = buffer.device_ptr_mut(&stream);
        // SAFETY: The buffer has room for the numbers, and they are there until the copy is done, which is waited for.
        let copied = unsafe { result::memcpy_htod_async(address, values, stream.cu_stream()) };
        drop(written);
        copied.map_err(|error| refused("cuMemcpyHtoDAsync", error))?;
        // The driver copies ordinary memory aside before it returns, but pinned memory later.
        wait(&stream)
    }

    fn read<T: Element>(buffer: &CudaBuffer<T>, values: &mut [T]) -> Result<(), DeviceError> {
        assert_eq!(values.len(), buffer.len, "room for as many numbers as there are");
        if values.is_empty() {
            return Ok(());
        }
        let stream = &buffer.stream;
        bind(stream)?;
        let (address, read) = buffer.device_ptr(stream);
        // SAFETY: The buffer has as many numbers as `values` has room for, which is there until the copy is done, which is waited for
        // below. Any bytes are values of an `Element`.
        let copied = unsafe { result::memcpy_dtoh_async(values, address, stream.cu_stream()) };
        drop(read);
        copied.map_err(|error| refused("cuMemcpyDtoHAsync", error))?;
        wait(stream)
    }

    fn copy<T: Element>(from: &CudaBuffer<T>, to: &mut CudaBuffer<T>) -> Result<(), DeviceError> {
        assert_eq!(from.len, to.len, "as many numbers as there is room for");
        if from.len == 0 {
            return Ok(());
        }
        let stream = Arc::clone(&to.stream);
        bind(&stream)?;
        stream.memcpy_dtod(from, to).map_err(|error| refused("cuMemcpyDtoDAsync", error))?;
        // From another device nobody else keeps the source until it is read.
        if from.stream.context() == stream.context() { Ok(()) } else { wait(&stream) }
    }

    /// The buffer's stream waits for the uses on other streams, as a `CudaSlice`'s does when it is dropped.
    fn finish<T: Element>(buffer: CudaBuffer<T>) {
        if let Some(tracked) = buffer.tracked.into_inner() {
            tracked.finish();
        }
    }
}

/// Makes the stream's context current on this thread.
fn bind(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.context().bind_to_thread().map_err(|error| refused("cuCtxSetCurrent", error))
}

fn wait(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.synchronize().map_err(|error| refused("cuStreamSynchronize", error))
}
