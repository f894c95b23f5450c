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
