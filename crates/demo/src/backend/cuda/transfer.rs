//! Copies between host and device, and between tensors of equal layout.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::{result, sys};
use half::{bf16, f16};

use super::error::{Context, refused};
use super::streams::{Streams, create_event};
use crate::backend::{RawSlice, Result, StagingBuffer};
use crate::dtype::DType;

/// Copies `from` from the host to a tensor.
///
/// The driver copies pageable memory to a buffer of its own before the call returns. From pinned
/// memory it copies later, so this waits.
pub(super) fn upload(streams: &Streams, from: &[u8], to: RawSlice<'_>) -> Result {
    assert_eq!(from.len(), to.bytes(), "the tensor has another size");
    if from.is_empty() {
        return Ok(());
    }
    streams.refuse_recording("cuMemcpyHtoDAsync")?;
    let stream = streams.current();
    // SAFETY: The creator of `to` guarantees live memory of `from.len()` bytes, used in the order
    // of streams. `from` is not used by the driver after this function, as described above.
    unsafe { result::memcpy_htod_async(to.address(), from, stream) }.during("cuMemcpyHtoDAsync")?;
    if is_pinned(from) { synchronize(stream) } else { Ok(()) }
}

/// Returns true for pinned memory, which the device reads without the CPU.
fn is_pinned(bytes: &[u8]) -> bool {
    let mut memory_type = 0u32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: The attribute is written to a variable of its type; any address may be asked for.
    let status = unsafe {
        sys::cuPointerGetAttribute((&raw mut memory_type).cast::<c_void>(), attribute, bytes.as_ptr() as u64)
    };
    status == sys::CUresult::CUDA_SUCCESS
}

/// Waits until all work queued on `stream` is done.
fn synchronize(stream: sys::CUstream) -> Result {
    // SAFETY: The stream exists.
    unsafe { result::stream::synchronize(stream) }.during("cuStreamSynchronize")
}

/// Copies a tensor to the host memory `to`, and waits for the copy.
pub(super) fn download(streams: &Streams, from: RawSlice<'_>, to: &mut [u8]) -> Result {
    assert_eq!(to.len(), from.bytes(), "the tensor has another size");
    if to.is_empty() {
        return Ok(());
    }
    streams.refuse_recording("cuMemcpyDtoHAsync")?;
    let stream = streams.current();
    // SAFETY: The creator of `from` guarantees live memory of `to.len()` bytes; `to` is borrowed
    // until the copy is done.
    let copied = unsafe { result::memcpy_dtoh_async(to, from.address(), stream) }.during("cuMemcpyDtoHAsync");
    synchronize(stream)?;
    copied
}

/// Queues a copy of a tensor to another tensor on the current stream.
pub(super) fn copy(streams: &Streams, from: RawSlice<'_>, to: RawSlice<'_>) -> Result {
    assert_eq!((from.dtype(), from.len()), (to.dtype(), to.len()), "the tensors differ in type or length");
    if from.len() == 0 || from.address() == to.address() {
        return Ok(());
    }
    // SAFETY: The creators of the slices guarantee live memory of these bytes.
    unsafe { result::memcpy_dtod_async(to.address(), from.address(), from.bytes(), streams.current()) }
        .during("cuMemcpyDtoDAsync")
}

/// Sets all elements of a tensor to `value`.
pub(super) fn fill(streams: &Streams, to: RawSlice<'_>, value: f32) -> Result {
    let (count, stream) = (to.len(), streams.current());
    if count == 0 {
        return Ok(());
    }
    let bits = match to.dtype() {
        DType::F32 => {
            // SAFETY: The creator of the slice guarantees live memory of `count` numbers.
            let status = unsafe { sys::cuMemsetD32Async(to.address(), value.to_bits(), count, stream) };
            return status.result().during("cuMemsetD32Async");
        }
        DType::F16 => f16::from_f32(value).to_bits(),
        DType::Bf16 => bf16::from_f32(value).to_bits(),
        other => panic!("cannot fill a tensor of {other} with a float"),
    };
    // SAFETY: The creator of the slice guarantees live memory of `count` numbers.
    unsafe { sys::cuMemsetD16Async(to.address(), bits, count, stream) }.result().during("cuMemsetD16Async")
}

/// A staging buffer of pinned host memory.
pub(super) struct PinnedBuffer {
    /// Keeps the context alive.
    _streams: Rc<Streams>,
    address: *mut u8,
    bytes: usize,
    /// The CUDA event that passes when the last copy from the buffer is done.
    event: sys::CUevent,
    is_copying: Cell<bool>,
}

impl PinnedBuffer {
    pub(super) fn new(streams: &Rc<Streams>, bytes: usize) -> Result<Self> {
        let event = create_event()?;
        // SAFETY: The size is not 0.
        let address = unsafe { result::malloc_host(bytes.max(1), 0) };
        let address = address.during("cuMemHostAlloc").inspect_err(|_| {
            // SAFETY: The event was created above and is not used.
            let _ = unsafe { result::event::destroy(event) };
        })?;
        let address = address.cast::<u8>();
        // SAFETY: The memory has that many bytes. Bytes must have a value before they are borrowed.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { _streams: Rc::clone(streams), address, bytes, event, is_copying: Cell::new(false) })
    }

    /// Waits until the last copy from the buffer is done.
    fn wait(&self) -> Result {
        if self.is_copying.get() {
            // SAFETY: The event exists as long as the buffer.
            unsafe { result::event::synchronize(self.event) }.during("cuEventSynchronize")?;
            self.is_copying.set(false);
        }
        Ok(())
    }
}

impl StagingBuffer for PinnedBuffer {
    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.wait()?;
        // SAFETY: The memory is this buffer's and has that many bytes; no copy reads it any more.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _ = self.wait();
        // SAFETY: No copy uses the event or the memory any more, which are released once. If this
        // fails, the driver has shut down.
        let _ = unsafe { (result::event::destroy(self.event), result::free_host(self.address.cast())) };
    }
}

/// Queues a copy from a staging buffer to a tensor.
pub(super) fn upload_staged(streams: &Streams, from: &dyn StagingBuffer, to: RawSlice<'_>) -> Result {
    let Some(buffer) = (from as &dyn Any).downcast_ref::<PinnedBuffer>() else {
        return Err(refused("cuMemcpyHtoDAsync", "the staging buffer is another backend's"));
    };
    assert!(to.bytes() <= buffer.bytes, "the tensor is larger than the staging buffer");
    if to.len() == 0 {
        return Ok(());
    }
    streams.refuse_recording("cuMemcpyHtoDAsync")?;
    let stream = streams.current();
    // SAFETY: The buffer has these bytes, which nothing writes before `wait`.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.address, to.bytes()) };
    // SAFETY: The creator of `to` guarantees live memory; the buffer is kept until the copy is
    // done.
    unsafe { result::memcpy_htod_async(to.address(), bytes, stream) }.during("cuMemcpyHtoDAsync")?;
    buffer.is_copying.set(true);
    // SAFETY: Event and stream exist.
    unsafe { result::event::record(buffer.event, stream) }.during("cuEventRecord")
}
