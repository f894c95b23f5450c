//! Numbers in a GPU's memory, and their uses on several streams.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, result, sys,
};
use vramscope_pool::DeviceError;
use vramscope_trace::{DeviceInfo, StreamId};

use super::device::CudaDevice;
use super::error::refused;
use crate::memory::{DeviceUsage, Element, MemoryDevice, sealed};

/// The memory of one buffer on a GPU.
///
/// Work on several streams is kept in order as cudarc keeps it for a `CudaSlice`, by two events of one: what reads waits for the last
/// that wrote, and what writes for the last that read and wrote. While the context has only its default stream there is nothing to
/// keep in order, and the `CudaSlice` is made at the first use after that; its events are most of what it costs.
///
/// Once the buffer is dropped, its own stream waits for those two events before the memory is used again. As with cudarc's slices, of
/// streams that read it at the same time the event is the last one's: where others may take longer,
/// [`PoolSlice::record_stream`](crate::PoolSlice::record_stream) says so.
#[derive(Debug)]
pub struct CudaBuffer<T> {
    /// The stream that the memory was asked for on, and for whose work it is used again.
    stream: Arc<CudaStream>,
    address: sys::CUdeviceptr,
    len: usize,
    /// Never dropped: it would free what is the pool's.
    tracked: OnceLock<ManuallyDrop<CudaSlice<T>>>,
    /// Whether it may have been used on another stream.
    among_streams: AtomicBool,
}

impl<T> CudaBuffer<T> {
    /// Whether cudarc keeps the context's streams in order with each other, asked for a use that follows.
    pub(super) fn is_tracking(&self) -> bool {
        let is_tracking = self.stream.context().is_managing_stream_synchronization();
        if is_tracking {
            self.among_streams.store(true, Ordering::Relaxed);
        }
        is_tracking
    }

    /// The address of the first number, for as long as the buffer.
    pub(super) fn address(&self) -> &sys::CUdeviceptr {
        &self.address
    }

    /// The same memory as cudarc's own, which must not be taken out of its `ManuallyDrop` to be dropped.
    pub(super) fn tracked(&self) -> &CudaSlice<T> {
        self.tracked.get_or_init(|| {
            let context = self.stream.context();
            // An error that another call left in the context would be a panic in `upgrade_device_ptr`; it is put back.
            let left_behind = context.check_err();
            // SAFETY: Whoever made this buffer guarantees memory for `len` numbers at `address`, of which any bytes are values.
            let mut slice = unsafe { self.stream.upgrade_device_ptr::<T>(self.address, self.len) };
            context.record_err(left_behind);
            // The memory may have been used before by work that is still queued on its stream: to another stream that counts as
            // written just now.
            drop(slice.device_ptr_mut(&self.stream));
            ManuallyDrop::new(slice)
        })
    }

    pub(super) fn tracked_mut(&mut self) -> &mut CudaSlice<T> {
        self.tracked();
        self.tracked.get_mut().expect("it was just made")
    }

    pub(super) fn view(&self) -> CudaView<'_, T> {
        self.is_tracking();
        self.tracked().as_view()
    }

    pub(super) fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.is_tracking();
        self.tracked_mut().as_view_mut()
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
        if self.is_tracking() { self.tracked().device_ptr(stream) } else { (self.address, SyncOnDrop::Record(None)) }
    }
}

impl<T> DevicePtrMut<T> for CudaBuffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        // As long as only its own stream uses it, with nobody else looking, there is nothing to wait for; what the stream is given now
        // counts as written when the events are made. So memory that is set when it is made needs none.
        let is_first = self.tracked.get().is_none() && *stream == *self.stream;
        if !is_first && self.is_tracking() {
            self.tracked_mut().device_ptr_mut(stream)
        } else {
            (self.address, SyncOnDrop::Record(None))
        }
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
        let (tracked, among_streams) = (OnceLock::new(), AtomicBool::new(false));
        Ok(CudaBuffer { stream: Arc::clone(stream), address, len, tracked, among_streams })
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
        stream.memcpy_dtod(from, to).map_err(|error| refused("cuMemcpyDtoDAsync", error))
    }

    /// The buffer's stream waits for the last work that read and that wrote the buffer on other streams, as a `CudaSlice`'s does when
    /// it is dropped.
    fn finish<T: Element>(buffer: CudaBuffer<T>) {
        let CudaBuffer { stream, tracked, among_streams, .. } = buffer;
        let Some(slice) = tracked.into_inner() else { return };
        let context = stream.context();
        if among_streams.into_inner() && !context.is_in_multi_stream_mode() {
            // The other streams are gone, but their work may not be done, and `leak` does not wait for it any more.
            context.record_err(context.synchronize());
        }
        ManuallyDrop::into_inner(slice).leak();
    }
}

/// Makes the stream's context current on this thread.
fn bind(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.context().bind_to_thread().map_err(|error| refused("cuCtxSetCurrent", error))
}

fn wait(stream: &CudaStream) -> Result<(), DeviceError> {
    stream.synchronize().map_err(|error| refused("cuStreamSynchronize", error))
}
