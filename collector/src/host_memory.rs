//! Buffers in the host's memory.

use std::ptr::{self, NonNull};
use std::slice;

use vramscope_pool::{Device, DeviceError};
use vramscope_trace::{DeviceInfo, StreamId};

use crate::host::HostDevice;
use crate::memory::{DeviceUsage, Element, MemoryDevice};

/// The memory of one buffer on the host. It does not own the memory; the
/// [`PoolSlice`](crate::PoolSlice) around it does.
#[derive(Debug)]
pub struct HostBuffer<T> {
    /// First number; dangling if `len` is 0.
    start: NonNull<T>,
    len: usize,
}

// SAFETY: The caller of `HostDevice::buffer` guarantees that nothing else uses the memory, so
// moving the buffer to another thread is like moving a `Box<[T]>`; `Element` requires `T: Send`.
unsafe impl<T: Element> Send for HostBuffer<T> {}
// SAFETY: A shared reference gives read access only, through `numbers`; `Element` requires that `T`
// is `Sync`.
unsafe impl<T: Element> Sync for HostBuffer<T> {}

impl<T: Element> HostBuffer<T> {
    /// Returns the buffer's elements.
    pub(crate) fn numbers(&self) -> &[T] {
        // SAFETY: The caller of `HostDevice::buffer` guarantees `len` aligned numbers at `start` in
        // one map, which stay mapped and unshared until the buffer is finished; `&self` excludes
        // `numbers_mut`. Maps start as zeros, and `Element` allows any bytes. If `len` is 0,
        // `start` is dangling but aligned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the buffer's elements, for changing them.
    pub(crate) fn numbers_mut(&mut self) -> &mut [T] {
        // SAFETY: The memory is valid as in `numbers`, and `&mut self` excludes all other slices of
        // this buffer while the result exists.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: `reserve` and `map` return memory of anonymous maps that only this device owns, and that
// it keeps until `release` or `unmap`. `set_zero`, `write` and `copy` fill the whole buffer before
// they return. Every access goes through a slice of the buffer or is bounded by its length.
unsafe impl MemoryDevice for HostDevice {
    type Stream = StreamId;
    type Buffer<T: Element> = HostBuffer<T>;

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            device: self.number(),
            name: "host memory".to_owned(),
            total_bytes: self.memory().total_bytes,
            history_complete: true,
            ..DeviceInfo::default()
        }
    }

    fn default_stream(&self) -> StreamId {
        StreamId(0)
    }

    fn stream_id(&mut self, stream: &StreamId) -> Result<StreamId, DeviceError> {
        Ok(*stream)
    }

    /// Returns `None`: other memory of the process does not count against the capacity.
    fn usage(&mut self) -> Option<DeviceUsage> {
        None
    }

    // SAFETY: This only stores the address. `numbers`, `numbers_mut` and `set_zero` rely on the
    // guarantees that the caller gives here.
    unsafe fn buffer<T: Element>(_: &StreamId, address: u64, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let start = match len {
            0 => NonNull::dangling(),
            _ => NonNull::new(ptr::with_exposed_provenance_mut(address as usize))
                .expect("the pool refuses segments at address 0"),
        };
        Ok(HostBuffer { start, len })
    }

    fn set_zero<T: Element>(buffer: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        // SAFETY: `start` points to `len` numbers as in `numbers`, `&mut` excludes all other
        // access, and `Element` guarantees that zero bytes are a valid number.
        unsafe { ptr::write_bytes(buffer.start.as_ptr(), 0, buffer.len) };
        Ok(())
    }

    fn write<T: Element>(buffer: &mut HostBuffer<T>, values: &[T]) -> Result<(), DeviceError> {
        buffer.numbers_mut().copy_from_slice(values);
        Ok(())
    }

    fn read<T: Element>(buffer: &HostBuffer<T>, values: &mut [T]) -> Result<(), DeviceError> {
        values.copy_from_slice(buffer.numbers());
        Ok(())
    }

    fn copy<T: Element>(from: &HostBuffer<T>, to: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        to.numbers_mut().copy_from_slice(from.numbers());
        Ok(())
    }

    fn finish<T: Element>(_: HostBuffer<T>) {}
}
