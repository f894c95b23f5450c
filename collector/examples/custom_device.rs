//! A pool over a device of your own: here one that wraps the host's memory and counts how often
//! the pool requests a segment.
//!
//! A device needs two traits: `Device`, by which the pool obtains segments, and `MemoryDevice`, by
//! which a program reads and writes buffers.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_collector::{
    DeviceError, DeviceMemory, DeviceUsage, Element, HostBuffer, HostDevice, MemoryDevice, Monitor, StreamId,
};
use vramscope_pool::Device;
use vramscope_trace::DeviceInfo;

/// The host's memory, with a count of reserved segments.
struct CountingDevice {
    host: HostDevice,
    segments: Arc<AtomicU64>,
}

impl Device for CountingDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.host.reserve(bytes)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.host.release(address, bytes)
    }

    fn memory(&self) -> DeviceMemory {
        self.host.memory()
    }
}

// SAFETY: Every method forwards to `HostDevice`, which keeps the trait's promises.
unsafe impl MemoryDevice for CountingDevice {
    type Stream = StreamId;
    type Buffer<T: Element> = HostBuffer<T>;

    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "counting device".to_owned(), ..self.host.info() }
    }

    fn default_stream(&self) -> StreamId {
        self.host.default_stream()
    }

    fn stream_id(&mut self, stream: &StreamId) -> Result<StreamId, DeviceError> {
        self.host.stream_id(stream)
    }

    fn usage(&mut self) -> Option<DeviceUsage> {
        None
    }

    // SAFETY: The caller's promises are those of `MemoryDevice::buffer`.
    unsafe fn buffer<T: Element>(stream: &StreamId, address: u64, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        // SAFETY: The caller gives the guarantees for this device's memory, which is the host's.
        unsafe { HostDevice::buffer(stream, address, len) }
    }

    fn set_zero<T: Element>(buffer: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        HostDevice::set_zero(buffer)
    }

    fn write<T: Element>(buffer: &mut HostBuffer<T>, values: &[T]) -> Result<(), DeviceError> {
        HostDevice::write(buffer, values)
    }

    fn read<T: Element>(buffer: &HostBuffer<T>, values: &mut [T]) -> Result<(), DeviceError> {
        HostDevice::read(buffer, values)
    }

    fn copy<T: Element>(from: &HostBuffer<T>, to: &mut HostBuffer<T>) -> Result<(), DeviceError> {
        HostDevice::copy(from, to)
    }

    fn finish<T: Element>(buffer: HostBuffer<T>) {
        HostDevice::finish(buffer);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let segments = Arc::new(AtomicU64::new(0));
    let device = CountingDevice { host: HostDevice::new(1 << 30), segments: Arc::clone(&segments) };
    let builder = Monitor::builder(device).program("custom device");
    #[cfg(feature = "server")]
    let builder = builder.listen(vramscope_collector::Listen::Off);
    let (monitor, pool) = builder.start()?;

    for _ in 0..1000 {
        let buffer = pool.alloc_zeros::<f32>(250_000)?;
        drop(buffer);
    }
    println!("1000 allocations needed {} segment(s)", segments.load(Ordering::Relaxed));
    println!("{} events were recorded", monitor.stop().events);
    Ok(())
}
