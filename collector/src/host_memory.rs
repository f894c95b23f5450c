//! Buffers in the host's memory.

use std::ptr::{self, NonNull};
use std::slice;

use vramscope_pool::{Device, DeviceError};
use vramscope_trace::{DeviceInfo, StreamId};

use crate::host::HostDevice;
use crate::memory::{DeviceUsage, Element, MemoryDevice};

/// The memory of one buffer on the host.
#[derive(Debug)]
pub struct HostBuffer<T> {
    /// First number; dangling if there are none.
    start: NonNull<T>,
    len: usize,
}

// SAFETY: The caller of `HostDevice::buffer` guarantees exclusive memory, like that of a
// `Box<[T]>`, and `Element` requires `T` to be `Send` and `Sync`.
unsafe impl<T: Element> Send for HostBuffer<T> {}
// SAFETY: As above; a shared reference gives read access only.
unsafe impl<T: Element> Sync for HostBuffer<T> {}

impl<T: Element> HostBuffer<T> {
    /// Returns the buffer's elements as a slice.
    pub(crate) fn numbers(&self) -> &[T] {
        // SAFETY: `start` points to `len` numbers in valid, aligned memory that belongs to this
        // buffer until it is finished, as the caller of `HostDevice::buffer` guarantees. Every byte
        // is initialized, by the operating system or an earlier buffer, and any bytes are a valid
        // `Element`. If `len` is 0 the pointer is dangling but aligned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the buffer's elements as a mutable slice.
    pub(crate) fn numbers_mut(&mut self) -> &mut [T] {
        // SAFETY: As for `numbers`; `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: Segments are private memory maps that stay until they are released, and every access is
// bounded by the buffer.
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

    // SAFETY: The caller's guarantees are those that `numbers` and `numbers_mut` rely on.
    unsafe fn buffer<T: Element>(_: &StreamId, address: u64, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let start = match len {
            0 => NonNull::dangling(),
            _ => NonNull::new(ptr::with_exposed_provenance_mut(address as usize))
                .expect("the pool refuses segments at address 0"),
        };
        Ok(HostBuffer { start, len })
    }

    fn set_zero<T: Element>(buffer: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        // SAFETY: The memory has `len` numbers and is exclusive, as for `numbers`; zero bytes are a
        // valid `Element`.
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
