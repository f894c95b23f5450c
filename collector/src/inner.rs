//! What a pool's lock guards.

use std::any::Any;

use vramscope_pool::{BlockState, BlockView, SegmentView, Pool};
use vramscope_trace::{Block, Definition, DeviceState, Event, EventKind, NullSink, Segment, Sink};

use crate::callback::FreeMemoryCallbacks;
use crate::memory::{DeviceUsage, MemoryDevice};
use crate::recorder::{RecorderHandle, Unit};
use crate::sites::{Numbers, Says, Sites};
use crate::time::Time;

/// What the driver says of the device's memory is asked at most so often while segments come and go: often enough to be seen in a picture,
/// and so seldom that the milliseconds a driver may take do not count.
const SAMPLE_EVERY_NS: u64 = 100_000_000;

/// The clock is read and the log told under the lock, so that definitions come before what uses them and events in the order of
/// their times.
pub(crate) struct Inner<D> {
    pub(crate) pool: Pool<D>,
    pub(crate) sites: Sites,
    pub(crate) log: Log,
    pub(crate) callbacks: FreeMemoryCallbacks,
    time: Time,
    sampled_ns: u64,
}

impl<D: MemoryDevice> Inner<D> {
    pub(crate) fn new(pool: Pool<D>, log: Log, says: Says) -> Self {
        Self {
            pool,
            sites: Sites::new(log.numbers(), says),
            log,
            callbacks: FreeMemoryCallbacks::default(),
            time: Time::default(),
            sampled_ns: 0,
        }
    }

    /// Has the recording catch up, where events were dropped and there is room again.
    #[cold]
    #[inline(never)]
    pub(crate) fn catch_up(&mut self) {
        let time = self.now();
        let Self { pool, log: Log::Recording { handle }, .. } = self else { return };
        handle.catch_up(pool.id(), (time, Unit::Ticks), || Some(seen(pool)));
    }

    /// The time in the log's unit; never goes back.
    #[inline]
    pub(crate) fn now(&mut self) -> u64 {
        self.time.exact(|| self.log.read_clock())
    }

    /// The time of a call that changes the pool.
    #[inline]
    pub(crate) fn time_of_call(&mut self) -> u64 {
        match &self.log {
            Log::Recording { handle } if handle.is_paused() => self.time.latest(),
            Log::Recording { handle } => self.time.of_call(|| handle.ticks()),
            Log::Nobody | Log::Other(..) => self.now(),
        }
    }

    /// Records what the driver says of the device's memory as a whole, where it says anything.
    pub(crate) fn sample(&mut self) -> Option<DeviceUsage> {
        let usage = self.pool.device_mut().usage()?;
        let time_ns = self.now();
        self.sampled_ns = self.log.ns_at(time_ns);
        let kind = EventKind::MemorySample {
            used_by_context: usage.process_bytes.saturating_sub(self.pool.stats().reserved_bytes.all.current),
            used_by_others: usage.other_processes_bytes,
            free: usage.free_bytes,
        };
        self.log.event(&Event { device: self.pool.id(), time_ns, kind });
        Some(usage)
    }

    /// The same if it is long ago that it was done.
    #[cold]
    pub(crate) fn sample_again(&mut self) {
        if self.log.ns_at(self.time.latest()).saturating_sub(self.sampled_ns) >= SAMPLE_EVERY_NS {
            self.sample();
        }
    }
}

/// What a pool's memory looks like. The recorder knows when what was there already began.
fn seen<D: MemoryDevice>(pool: &Pool<D>) -> DeviceState {
    let mut seen = DeviceState::default();
    let laid = pool.segments();
    for segment in &laid {
        let &SegmentView { address, size, stream, pool, expandable, site, .. } = segment;
        seen.insert_segment(Segment { address, size, stream, pool, expandable, site, since_event: 0 });
    }
    for segment in &laid {
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
            let &BlockView { address, size, requested, site, state } = block;
            let pending_free = state == BlockState::PendingFree;
            let (stream, pool, since_event, since_ns) = (segment.stream, segment.pool, 0, 0);
            seen.insert_block(Block {
                address,
                size,
                requested,
                stream,
                pool,
                site,
                pending_free,
                since_event,
                since_ns,
            });
        }
    }
    seen
}

/// Who is told of a pool's events.
pub(crate) enum Log {
    /// Nobody, and so nobody asks when and where.
    Nobody,
    /// A recording, whose own clock it is. The times of the pool's events are its ticks, of which the recorder makes nanoseconds.
    Recording {
        /// Its way in.
        handle: RecorderHandle,
    },
    /// Anyone else, by another clock, which tells nanoseconds.
    Other(Box<dyn AnySink>, Box<dyn Fn() -> u64 + Send + Sync>),
}

/// A sink of which it can be asked what it is.
pub(crate) trait AnySink: Sink + Any + Send {}
impl<S: Sink + Any + Send> AnySink for S {}

impl Log {
    pub(crate) fn new(sink: impl Sink + Send + 'static, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let is_null = (&sink as &dyn Any).is::<NullSink>();
        if is_null { Self::Nobody } else { Self::Other(Box::new(sink), Box::new(clock)) }
    }

    /// The numbers of what it is told, which others may tell the same recording.
    fn numbers(&self) -> Numbers {
        match self {
            Self::Recording { handle } => handle.numbers(),
            Self::Other(sink, _) => {
                let sink: &dyn Any = &**sink;
                sink.downcast_ref::<RecorderHandle>().map(RecorderHandle::numbers).unwrap_or_default()
            }
            Self::Nobody => Numbers::default(),
        }
    }

    /// Whether events are being dropped that need not be any more.
    #[inline]
    pub(crate) fn may_catch_up(&self) -> bool {
        matches!(self, Self::Recording { handle } if handle.may_catch_up())
    }

    /// Whether anybody wants to know where memory was asked for.
    #[inline]
    pub(crate) fn wants_sites(&self) -> bool {
        match self {
            Self::Nobody => false,
            Self::Recording { handle } => !handle.is_paused(),
            Self::Other(..) => true,
        }
    }

    /// What the clock says, in nanoseconds or ticks.
    #[inline(always)]
    fn read_clock(&self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Recording { handle } => handle.ticks(),
            Self::Other(_, clock) => clock(),
        }
    }

    /// The nanoseconds when the clock said so.
    fn ns_at(&self, time: u64) -> u64 {
        if let Self::Recording { handle } = self { handle.ns_at(time) } else { time }
    }
}

impl Sink for Log {
    // Always, so that what kind an event is of is known where the recording packs it.
    #[inline(always)]
    fn event(&mut self, event: &Event) {
        match self {
            Self::Nobody => {}
            Self::Recording { handle } => handle.event_at_ticks(event),
            Self::Other(sink, _) => sink.event(event),
        }
    }
    fn define(&mut self, definition: &Definition) {
        match self {
            Self::Nobody => {}
            Self::Recording { handle } => handle.define(definition),
            Self::Other(sink, _) => sink.define(definition),
        }
    }
}

/// Passes events on, and sees whether segments are among them.
pub(crate) struct Told<'a> {
    log: &'a mut Log,
    /// Whether a segment came, went, grew or shrank.
    pub(crate) segments: bool,
}

impl<'a> Told<'a> {
    pub(crate) fn new(log: &'a mut Log) -> Self {
        Self { log, segments: false }
    }
}

impl Sink for Told<'_> {
    #[inline(always)]
    fn event(&mut self, event: &Event) {
        self.segments |= matches!(
            event.kind,
            EventKind::SegmentAllocated { .. }
                | EventKind::SegmentFreed { .. }
                | EventKind::SegmentMapped { .. }
                | EventKind::SegmentUnmapped { .. }
        );
        self.log.event(event);
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
        fn stream_id(&mut self, stream: &StreamId) -> Result<StreamId, DeviceError> {
            Ok(*stream)
        }
        fn usage(&mut self) -> Option<DeviceUsage> {
            let DeviceMemory { free_bytes, total_bytes } = self.0.memory();
            Some(DeviceUsage {
                process_bytes: total_bytes - free_bytes + 3 * MIB,
                other_processes_bytes: 5 * MIB,
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
    fn the_times_of_events_never_go_back() {
        /// Keeps the times.
        struct Times(Arc<Mutex<Vec<u64>>>);

        impl Sink for Times {
            fn event(&mut self, event: &Event) {
                self.0.lock().expect("no panic").push(event.time_ns);
            }
        }

        let (times, clock) = (Arc::default(), AtomicU64::new(3));
        let back = move || clock.fetch_sub(1, Ordering::Relaxed);
        let sink = Times(Arc::clone(&times));
        let pool = DevicePool::new(HostDevice::new(64 * MIB), Settings::default(), sink, back);
        pool.mark("first");
        pool.mark("second");
        assert_eq!(*times.lock().expect("no panic"), [3, 3]);
    }

    #[test]
    fn what_others_hold_is_in_the_error() {
        let (pool, samples, _) = metered();
        let error = pool.caching_allocator_alloc(100 * MIB, StreamId(0)).expect_err("no room");
        let AllocateError::OutOfMemory(details) = error else { panic!("{error}") };
        assert_eq!((details.process_bytes, details.other_processes_bytes), (Some(3 * MIB), Some(5 * MIB)));
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
