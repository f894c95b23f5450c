//! A pool with its event log and its sites: what [`DevicePool`](crate::DevicePool)'s lock guards.

use std::any::Any;

use vramscope_pool::{BlockState, BlockView, Pool, SegmentView};
use vramscope_trace::{Block, Definition, DeviceState, Event, EventKind, NullSink, Segment, Sink};

use crate::callback::FreeMemoryCallbacks;
use crate::memory::{DeviceUsage, MemoryDevice};
use crate::recorder::{RecorderHandle, Unit};
use crate::sites::{Numbers, SiteDetail, Sites};
use crate::time::CallClock;

/// Minimum interval between samples of the whole device's memory while segments change, in
/// nanoseconds: 0.1 s. Frequent enough for a timeline, and rare enough that the milliseconds a
/// driver may take do not matter.
const SAMPLE_INTERVAL_NS: u64 = 100_000_000;

/// A pool with everything that records it: sites, event log, clock and callbacks.
///
/// The clock is read and the log is written under the lock, so that definitions come before their
/// use and events in order of time.
pub(crate) struct RecordedPool<D> {
    pub(crate) pool: Pool<D>,
    pub(crate) sites: Sites,
    pub(crate) log: EventLog,
    pub(crate) callbacks: FreeMemoryCallbacks,
    time: CallClock,
    sampled_ns: u64,
}

impl<D: MemoryDevice> RecordedPool<D> {
    pub(crate) fn new(pool: Pool<D>, log: EventLog, detail: SiteDetail) -> Self {
        let (sites, callbacks) = (Sites::new(log.numbers(), detail), FreeMemoryCallbacks::default());
        Self { pool, sites, log, callbacks, time: CallClock::default(), sampled_ns: 0 }
    }

    /// Ends the dropping of events if the recorder has room again: records how many events were
    /// dropped, and the pool's state after them. Otherwise does nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn catch_up(&mut self) {
        let time = self.now();
        let Self { pool, log: EventLog::Recording { handle }, .. } = self else { return };
        handle.catch_up(pool.id(), (time, Unit::Ticks), || Some(memory_state(pool)));
    }

    /// Records later events by the recorder of `handle`, beginning with the pool's present state.
    /// `detail` says what its sites contain. The sites of present blocks become unknown: their
    /// numbers are those of an earlier recording.
    pub(crate) fn record_to(&mut self, mut handle: RecorderHandle, detail: SiteDetail) {
        self.pool.forget_sites();
        if self.pool.stats().segment.all.current > 0 {
            handle.resync(self.pool.id(), handle.now_ns(), 0, memory_state(&self.pool));
        }
        self.sites = Sites::new(handle.numbers(), detail);
        self.log = EventLog::Recording { handle };
        self.time = CallClock::default();
        self.sample();
    }

    /// Returns the pool's segments and its allocated or pending-free blocks.
    pub(crate) fn memory_state(&self) -> DeviceState {
        memory_state(&self.pool)
    }

    /// Reads the clock: ticks of the recorder's clock if a recorder is attached, otherwise
    /// nanoseconds. Never goes back.
    #[inline]
    pub(crate) fn now(&mut self) -> u64 {
        self.time.exact(|| self.log.read_clock())
    }

    /// Returns the time for the events of a call that changes the pool, in the unit of
    /// [`now`](Self::now). In a burst of calls, several calls share one reading of the clock.
    #[inline]
    pub(crate) fn time_of_call(&mut self) -> u64 {
        match &self.log {
            EventLog::Recording { handle } if handle.is_paused() => self.time.latest(),
            EventLog::Recording { handle } => self.time.of_call(|| handle.ticks()),
            EventLog::Off | EventLog::Other(..) => self.now(),
        }
    }

    /// Records how many bytes of the device's memory this process and others hold, and returns
    /// them; `None` if the device cannot tell.
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

    /// Records a sample of the device's memory if the last one is at least [`SAMPLE_INTERVAL_NS`]
    /// old.
    #[cold]
    pub(crate) fn sample_again(&mut self) {
        if self.log.ns_at(self.time.latest()).saturating_sub(self.sampled_ns) >= SAMPLE_INTERVAL_NS {
            self.sample();
        }
    }
}

/// Returns the pool's segments and its allocated or pending-free blocks. Their ages are 0; the
/// recorder knows when each block was allocated.
fn memory_state<D: MemoryDevice>(pool: &Pool<D>) -> DeviceState {
    let mut memory = DeviceState::default();
    let segments = pool.segments();
    for segment in &segments {
        let &SegmentView { address, size, stream, pool, expandable, site, .. } = segment;
        memory.insert_segment(Segment { address, size, stream, pool, expandable, site, since_event: 0 });
    }
    for segment in &segments {
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
            let &BlockView { address, size, requested, site, state } = block;
            let pending_free = state == BlockState::PendingFree;
            let (stream, pool, since_event, since_ns) = (segment.stream, segment.pool, 0, 0);
            let block = Block { address, size, requested, stream, pool, site, pending_free, since_event, since_ns };
            memory.insert_block(block);
        }
    }
    memory
}

/// The destination of a pool's events (nowhere, a recorder, or another sink), and the clock for
/// their times.
pub(crate) enum EventLog {
    /// Nowhere; neither the clock nor source locations are needed.
    Off,
    /// To a recorder. Times are ticks of its clock, which it converts to nanoseconds.
    Recording {
        /// The recorder's handle.
        handle: RecorderHandle,
    },
    /// To another sink, with times in nanoseconds of this clock.
    Other(Box<dyn AnySink>, Box<dyn Fn() -> u64 + Send + Sync>),
}

/// A sink that can be downcast to its concrete type.
pub(crate) trait AnySink: Sink + Any + Send {}
impl<S: Sink + Any + Send> AnySink for S {}

impl EventLog {
    pub(crate) fn new(sink: impl Sink + Send + 'static, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let is_null = (&sink as &dyn Any).is::<NullSink>();
        if is_null { Self::Off } else { Self::Other(Box::new(sink), Box::new(clock)) }
    }

    /// Returns the numbering of sites and names, which all pools of a recording share.
    fn numbers(&self) -> Numbers {
        match self {
            Self::Recording { handle } => handle.numbers(),
            Self::Other(sink, _) => {
                let sink: &dyn Any = &**sink;
                sink.downcast_ref::<RecorderHandle>().map(RecorderHandle::numbers).unwrap_or_default()
            }
            Self::Off => Numbers::default(),
        }
    }

    /// Returns true while events are being dropped because the recorder was full;
    /// [`catch_up`](RecordedPool::catch_up) is due before the next event. Always false without a
    /// recorder.
    #[inline]
    pub(crate) fn may_catch_up(&self) -> bool {
        matches!(self, Self::Recording { handle } if handle.may_catch_up())
    }

    /// Returns true if sites (source line, scope, category) are recorded, so that callers must
    /// determine them. False without a sink and while recording is off.
    #[inline]
    pub(crate) fn wants_sites(&self) -> bool {
        match self {
            Self::Off => false,
            Self::Recording { handle } => !handle.is_paused(),
            Self::Other(..) => true,
        }
    }

    /// Reads the clock: ticks for a recorder, nanoseconds for another sink, 0 without a sink.
    #[inline(always)]
    fn read_clock(&self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Recording { handle } => handle.ticks(),
            Self::Other(_, clock) => clock(),
        }
    }

    /// Converts a time from [`read_clock`](Self::read_clock) to nanoseconds: ticks of a recorder's
    /// clock are converted; times for another sink are returned unchanged.
    fn ns_at(&self, time: u64) -> u64 {
        if let Self::Recording { handle } = self { handle.ns_at(time) } else { time }
    }
}

impl Sink for EventLog {
    // Always inlined, so that the recorder's packing knows the kind of event at compile time.
    #[inline(always)]
    fn event(&mut self, event: &Event) {
        match self {
            Self::Off => {}
            Self::Recording { handle } => handle.event_at_ticks(event),
            Self::Other(sink, _) => sink.event(event),
        }
    }
    fn define(&mut self, definition: &Definition) {
        match self {
            Self::Off => {}
            Self::Recording { handle } => handle.define(definition),
            Self::Other(sink, _) => sink.define(definition),
        }
    }
}

/// A sink that passes events on to the log and remembers whether one of them changed a segment.
pub(crate) struct SegmentWatcher<'a> {
    log: &'a mut EventLog,
    /// True after a segment was allocated, freed, mapped or unmapped.
    pub(crate) segments_changed: bool,
}

impl<'a> SegmentWatcher<'a> {
    pub(crate) fn new(log: &'a mut EventLog) -> Self {
        Self { log, segments_changed: false }
    }
}

impl Sink for SegmentWatcher<'_> {
    #[inline(always)]
    fn event(&mut self, event: &Event) {
        self.segments_changed |= matches!(
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
    use crate::memory::Element;
    use crate::pool::DevicePool;

    const MIB: u64 = 1 << 20;

    /// The host's memory with a driver that reports usage: this process holds 3 MiB outside the
    /// pool, others hold 5 MiB.
    struct MeteredHost(HostDevice);

    impl Device for MeteredHost {
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

    // SAFETY: Every method forwards to `HostDevice`, or fails, as `set_zero` does.
    unsafe impl MemoryDevice for MeteredHost {
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
        // SAFETY: This only forwards to `HostDevice::buffer`, with the caller's guarantees.
        unsafe fn buffer<T: Element>(
            stream: &StreamId,
            address: u64,
            len: usize,
        ) -> Result<HostBuffer<T>, DeviceError> {
            // SAFETY: The caller gives the guarantees for this device's memory, which is the
            // host's.
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

    /// A sink that collects the kinds of all events.
    #[derive(Clone, Default)]
    struct Samples(Arc<Mutex<Vec<EventKind>>>);

    impl Sink for Samples {
        fn event(&mut self, event: &Event) {
            assert_eq!(event.device.0, 2);
            self.0.lock().expect("no thread panics").push(event.kind);
        }
    }

    impl Samples {
        fn samples(&self) -> Vec<(u64, u64, u64)> {
            let events = self.0.lock().expect("no thread panics");
            let samples = events.iter().filter_map(|kind| match *kind {
                EventKind::MemorySample { used_by_context, used_by_others, free } => {
                    Some((used_by_context / MIB, used_by_others / MIB, free / MIB))
                }
                _ => None,
            });
            samples.collect()
        }
    }

    fn metered() -> (DevicePool<MeteredHost>, Samples, Arc<AtomicU64>) {
        let (samples, time) = (Samples::default(), Arc::new(AtomicU64::new(0)));
        let clock = Arc::clone(&time);
        let device = MeteredHost(HostDevice::new(64 * MIB));
        let pool = DevicePool::new(device, Settings::default(), samples.clone(), move || clock.load(Ordering::Relaxed));
        (pool, samples, time)
    }

    #[test]
    fn device_memory_is_sampled_when_segments_change() {
        let (pool, samples, time) = metered();
        assert_eq!(samples.samples(), [(3, 5, 56)]);
        let first = pool.caching_allocator_alloc(12 * MIB, StreamId(0)).expect("the device is large enough");
        assert_eq!(samples.samples().len(), 1, "too soon after the first sample");
        time.store(SAMPLE_INTERVAL_NS, Ordering::Relaxed);
        let second = pool.caching_allocator_alloc(10 * MIB, StreamId(0)).expect("the device is large enough");
        assert_eq!(samples.samples()[1..], [(3, 5, 34)]);
        time.store(3 * SAMPLE_INTERVAL_NS, Ordering::Relaxed);
        for address in [first, second] {
            // SAFETY: The address is not used afterwards.
            unsafe { pool.caching_allocator_delete(address.expect("the request is for more than 0 bytes")) }
                .expect("the block is live");
        }
        assert_eq!(samples.samples().len(), 2, "no segment has changed");
        pool.empty_cache().expect("the host releases its memory");
        assert_eq!(samples.samples()[2..], [(3, 5, 56)]);
    }

    #[test]
    fn event_times_never_go_back() {
        /// Collects event times.
        struct Times(Arc<Mutex<Vec<u64>>>);

        impl Sink for Times {
            fn event(&mut self, event: &Event) {
                self.0.lock().expect("no thread panics").push(event.time_ns);
            }
        }

        let (times, clock) = (Arc::default(), AtomicU64::new(3));
        let backward_clock = move || clock.fetch_sub(1, Ordering::Relaxed);
        let sink = Times(Arc::clone(&times));
        let pool = DevicePool::new(HostDevice::new(64 * MIB), Settings::default(), sink, backward_clock);
        pool.mark("first");
        pool.mark("second");
        assert_eq!(*times.lock().expect("no thread panics"), [3, 3]);
    }

    #[test]
    fn out_of_memory_error_contains_other_processes_memory() {
        let (pool, samples, _) = metered();
        let error = pool.caching_allocator_alloc(100 * MIB, StreamId(0)).expect_err("the device is too small");
        let AllocateError::OutOfMemory(details) = error else { panic!("{error}") };
        assert_eq!((details.process_bytes, details.other_processes_bytes), (Some(3 * MIB), Some(5 * MIB)));
        let events = samples.0.lock().expect("no thread panics");
        let last = &events[events.len() - 2..];
        assert!(matches!(last, [EventKind::OutOfMemory { .. }, EventKind::MemorySample { .. }]), "{last:?}");
    }

    #[test]
    fn buffer_that_cannot_be_initialized_is_freed() {
        let (pool, _, _) = metered();
        assert!(matches!(pool.alloc_zeros::<u8>(1000), Err(AllocateError::Device(DeviceError::Failed(_)))));
        assert_eq!((pool.memory_allocated(), pool.max_memory_allocated()), (0, 1024));
    }
}
