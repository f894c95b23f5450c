//! Numbers in this machine's memory. Work on it is done at once, so that streams differ in their numbers alone.

use std::ptr::{self, NonNull};
use std::slice;

use vramscope_pool::{Device, DeviceError};
use vramscope_trace::{DeviceInfo, StreamId};

use crate::host::HostDevice;
use crate::memory::{DeviceUsage, Element, MemoryDevice, sealed};

/// The memory of one buffer in this machine's memory.
#[derive(Debug)]
pub struct HostBuffer<T> {
    /// The first number; dangling where there is none.
    start: NonNull<T>,
    len: usize,
}

// SAFETY: Whoever calls `HostDevice::buffer` guarantees that its memory is the buffer's alone, as a `Box<[T]>`'s is, and `T` may be
// sent and shared (`Element` demands it).
unsafe impl<T: Element> Send for HostBuffer<T> {}
// SAFETY: As above; through a shared reference the numbers can only be read.
unsafe impl<T: Element> Sync for HostBuffer<T> {}

impl<T: Element> HostBuffer<T> {
    pub(crate) fn numbers(&self) -> &[T] {
        // SAFETY: `start` points at `len` numbers in memory that is there, is aligned and is this buffer's alone until it is
        // finished, as whoever called `HostDevice::buffer` guarantees. The operating system or an earlier buffer wrote each of
        // their bytes, and any bytes are a value of an `Element`. Where `len` is 0 the pointer is dangling but aligned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn numbers_mut(&mut self) -> &mut [T] {
        // SAFETY: As for `numbers`; the exclusive reference to the buffer makes this one exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl sealed::Sealed for HostDevice {}

impl MemoryDevice for HostDevice {
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

    /// Nothing: the capacity is a part of the machine's memory, and what the process holds beside it does not lessen it.
    fn usage(&mut self) -> Option<DeviceUsage> {
        None
    }

    // SAFETY: What the caller guarantees is what `numbers` and `numbers_mut` rely on.
    unsafe fn buffer<T: Element>(_: &StreamId, address: u64, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let start = match len {
            0 => NonNull::dangling(),
            _ => NonNull::new(ptr::with_exposed_provenance_mut(address as usize))
                .expect("the pool refuses segments at address 0"),
        };
        Ok(HostBuffer { start, len })
    }

    fn set_zero<T: Element>(buffer: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        // SAFETY: The buffer's memory is `len` numbers and its own, as for `numbers`; zero bytes are a value of every `Element`.
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
