//! What a pool's lock guards.

use vramscope_pool::Pool;
use vramscope_trace::{Definition, Definitions, Event, EventKind, Sink};

use crate::callback::FreeMemoryCallbacks;
use crate::memory::{DeviceUsage, MemoryDevice};
use crate::scope::Sites;

/// What the driver says of the device's memory is asked at most so often while segments come and go: often enough to be seen in a picture,
/// and so seldom that the milliseconds a driver may take do not count.
const SAMPLE_EVERY_NS: u64 = 100_000_000;

/// The clock is read and the sink told under the lock, so that definitions come before what uses them and events in the order of
/// their times.
pub(crate) struct Inner<D> {
    pub(crate) pool: Pool<D>,
    pub(crate) sites: Sites,
    /// What the sink was told, for whoever reads the pool.
    pub(crate) definitions: Definitions,
    pub(crate) sink: Box<dyn Sink + Send>,
    pub(crate) callbacks: FreeMemoryCallbacks,
    sampled_ns: u64,
}

impl<D: MemoryDevice> Inner<D> {
    pub(crate) fn new(pool: Pool<D>, sink: Box<dyn Sink + Send>) -> Self {
        Self {
            pool,
            sites: Sites::default(),
            definitions: Definitions::default(),
            sink,
            callbacks: FreeMemoryCallbacks::default(),
            sampled_ns: 0,
        }
    }

    #[inline]
    pub(crate) fn tell_definitions(&mut self) {
        self.sites.tell_fresh(&mut Kept { sink: &mut *self.sink, definitions: &mut self.definitions });
    }

    /// Records what the driver says of the device's memory as a whole, where it says anything.
    pub(crate) fn sample(&mut self, now_ns: impl FnOnce() -> u64) -> Option<DeviceUsage> {
        let usage = self.pool.device_mut().usage()?;
        let time_ns = now_ns();
        self.sampled_ns = time_ns;
        let kind = EventKind::MemorySample {
            used_by_context: usage.process_bytes.saturating_sub(self.pool.stats().reserved_bytes.all.current),
            used_by_others: usage.others_bytes,
            free: usage.free_bytes,
        };
        self.sink.event(&Event { device: self.pool.id(), time_ns, kind });
        Some(usage)
    }

    /// The same if it is long ago that it was done.
    #[cold]
    pub(crate) fn sample_again(&mut self, time_ns: u64) {
        if time_ns.saturating_sub(self.sampled_ns) >= SAMPLE_EVERY_NS {
            self.sample(|| time_ns);
        }
    }
}

/// Passes events on, and sees whether segments are among them.
pub(crate) struct Told<'a> {
    sink: &'a mut (dyn Sink + Send),
    /// Whether a segment came, went, grew or shrank.
    pub(crate) segments: bool,
}

impl<'a> Told<'a> {
    pub(crate) fn new(sink: &'a mut (dyn Sink + Send)) -> Self {
        Self { sink, segments: false }
    }
}

impl Sink for Told<'_> {
    #[inline]
    fn event(&mut self, event: &Event) {
        self.segments |= matches!(
            event.kind,
            EventKind::SegmentAllocated { .. }
                | EventKind::SegmentFreed { .. }
                | EventKind::SegmentMapped { .. }
                | EventKind::SegmentUnmapped { .. }
        );
        self.sink.event(event);
    }
}

/// Passes definitions on and keeps them.
struct Kept<'a> {
    sink: &'a mut (dyn Sink + Send),
    definitions: &'a mut Definitions,
}

impl Sink for Kept<'_> {
    fn event(&mut self, event: &Event) {
        self.sink.event(event);
    }
    fn define(&mut self, definition: &Definition) {
        self.definitions.define(definition.clone());
        self.sink.define(definition);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use vramscope_pool::{AllocateError, Device, DeviceError, DeviceMemory, Settings};
    use vramscope_trace::{DeviceInfo, StreamId};

    use super::*;
    use crate::host::HostDevice;
    use crate::host_memory::HostBuffer;
    use crate::memory::{Element, sealed};
    use crate::pool::DevicePool;

    const MIB: u64 = 1 << 20;

    /// The host with a driver that tells who holds its memory: this process 3 MiB beside the pool, others 5 MiB.
    struct Metered(HostDevice);

    impl Device for Metered {
        fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
            self.0.reserve(bytes)
        }
        fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
            self.0.release(address, bytes)
        }
        fn memory(&self) -> DeviceMemory {
            self.0.memory()
        }
    }

    impl sealed::Sealed for Metered {}

    impl MemoryDevice for Metered {
        type Stream = StreamId;
        type Buffer<T: Element> = HostBuffer<T>;

        fn info(&self) -> DeviceInfo {
            DeviceInfo { device: 2, ..self.0.info() }
        }
        fn default_stream(&self) -> StreamId {
            self.0.default_stream()
        }
        fn stream_id(&mut self, stream: &StreamId) -> StreamId {
            *stream
        }
        fn usage(&mut self) -> Option<DeviceUsage> {
            let DeviceMemory { free_bytes, total_bytes } = self.0.memory();
            Some(DeviceUsage {
                process_bytes: total_bytes - free_bytes + 3 * MIB,
                others_bytes: 5 * MIB,
                free_bytes: free_bytes.saturating_sub(8 * MIB),
            })
        }
        // SAFETY: What the caller guarantees is what the host asks for.
        unsafe fn buffer<T: Element>(
            stream: &StreamId,
            address: u64,
            len: usize,
        ) -> Result<HostBuffer<T>, DeviceError> {
            // SAFETY: The caller guarantees the same of this device's memory, which is the host's.
            unsafe { HostDevice::buffer(stream, address, len) }
        }
        fn set_zero<T: Element>(_: &mut HostBuffer<T>) -> Result<(), DeviceError> {
            Err(DeviceError::Failed("the queue is full".to_owned()))
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

    /// Keeps the samples, and which event came before each.
    #[derive(Clone, Default)]
    struct Samples(Arc<Mutex<Vec<EventKind>>>);

    impl Sink for Samples {
        fn event(&mut self, event: &Event) {
            assert_eq!(event.device.0, 2);
            self.0.lock().expect("no panic").push(event.kind);
        }
    }

    impl Samples {
        fn samples(&self) -> Vec<(u64, u64, u64)> {
            let events = self.0.lock().expect("no panic");
            let samples = events.iter().filter_map(|kind| match *kind {
                EventKind::MemorySample { used_by_context, used_by_others, free } => {
                    Some((used_by_context / MIB, used_by_others / MIB, free / MIB))
                }
                _ => None,
            });
            samples.collect()
        }
    }

    fn metered() -> (DevicePool<Metered>, Samples, Arc<AtomicU64>) {
        let (samples, time) = (Samples::default(), Arc::new(AtomicU64::new(0)));
        let clock = Arc::clone(&time);
        let device = Metered(HostDevice::new(64 * MIB));
        let pool = DevicePool::new(device, Settings::default(), samples.clone(), move || clock.load(Ordering::Relaxed));
        (pool, samples, time)
    }

    #[test]
    fn what_is_held_outside_the_pool_is_recorded_now_and_then() {
        let (pool, samples, time) = metered();
        assert_eq!(samples.samples(), [(3, 5, 56)]);
        let first = pool.caching_allocator_alloc(12 * MIB, StreamId(0)).expect("room");
        assert_eq!(samples.samples().len(), 1, "not so soon after the first");
        time.store(SAMPLE_EVERY_NS, Ordering::Relaxed);
        let second = pool.caching_allocator_alloc(10 * MIB, StreamId(0)).expect("room");
        assert_eq!(samples.samples()[1..], [(3, 5, 34)]);
        time.store(3 * SAMPLE_EVERY_NS, Ordering::Relaxed);
        for address in [first, second] {
            // SAFETY: Nobody uses it.
            unsafe { pool.caching_allocator_delete(address.expect("bytes")) }.expect("live");
        }
        assert_eq!(samples.samples().len(), 2, "no segment has come or gone");
        pool.empty_cache().expect("the host takes its memory back");
        assert_eq!(samples.samples()[2..], [(3, 5, 56)]);
    }

    #[test]
    fn what_others_hold_is_in_the_error() {
        let (pool, samples, _) = metered();
        let error = pool.caching_allocator_alloc(100 * MIB, StreamId(0)).expect_err("no room");
        let AllocateError::OutOfMemory(details) = error else { panic!("{error}") };
        assert_eq!((details.process_bytes, details.others_bytes), (Some(3 * MIB), Some(5 * MIB)));
        let events = samples.0.lock().expect("no panic");
        let last = &events[events.len() - 2..];
        assert!(matches!(last, [EventKind::OutOfMemory { .. }, EventKind::MemorySample { .. }]), "{last:?}");
    }

    #[test]
    fn a_buffer_that_cannot_be_filled_gives_its_memory_back() {
        let (pool, _, _) = metered();
        assert!(matches!(pool.alloc_zeros::<u8>(1000), Err(AllocateError::Device(DeviceError::Failed(_)))));
        assert_eq!((pool.memory_allocated(), pool.max_memory_allocated()), (0, 1024));
    }
}
