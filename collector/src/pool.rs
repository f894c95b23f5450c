//! The pool as a program uses it: shared by its threads, recorded, and told by scopes what memory is for.

use std::fmt;
use std::panic::{Location, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use vramscope_pool::{AllocateError, AllocatedBlock, DeviceError, FreeError, Origin, OutOfMemory, Pool, Settings, Stats};
use vramscope_trace::{Category, DeviceId, Event, EventKind, MempoolId, Sink, SiteId, AnnotationStage, StreamId};

use crate::callback::{self, FreeMemoryCallbacks, Observers};
use crate::host::HostDevice;
use crate::inner::{Inner, Log, Told};
use crate::memory::MemoryDevice;
use crate::recorder::RecorderHandle;
use crate::scope::{Context, Scope, unique_number};
use crate::sites::Says;

/// A caching allocator over the memory of a device. Clones are the same pool.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool};
/// use vramscope_pool::Settings;
/// use vramscope_trace::{Category, NullSink};
///
/// let started = std::time::Instant::now();
/// let device = HostDevice::new(64 << 20);
/// let pool = HostPool::new(device, Settings::default(), Null, move || started.elapsed().as_nanos() as u64);
/// let _step = pool.scope("step");
/// let _forward = pool.scope_with("forward", Category::Activation);
/// let mut hidden = pool.alloc_zeros::<f32>(1024)?;
/// hidden[7] = 1.0;
/// # Ok::<(), vramscope_collector::AllocateError>(())
/// ```
pub struct DevicePool<D: MemoryDevice> {
    shared: Arc<Shared<D>>,
}

/// A pool over this machine's memory.
pub type HostPool = DevicePool<HostDevice>;

struct Shared<D: MemoryDevice> {
    /// Tells this pool from others.
    number: u64,
    default_stream: D::Stream,
    inner: Mutex<Inner<D>>,
    observers: Observers,
}

/// What a request is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    /// The private pool that serves it, whatever is diverted.
    pub(crate) mempool: Option<MempoolId>,
    pub(crate) location: &'static Location<'static>,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// A pool over `device` whose events go to `sink` and have the times, in nanoseconds, that `clock` says. Where the sink is
    /// [`NullSink`](vramscope_trace::NullSink) nobody asks the clock, nor where memory was asked for.
    ///
    /// Both are called under the pool's lock, which is not given twice to a thread: one of them that asks the pool anything, or drops
    /// a buffer of it, waits for itself forever.
    ///
    /// What the driver says of the whole device's memory is recorded when the pool is made, when segments come and go (ten times a
    /// second at most) and at out of memory, and not in between: what others take while the pool stands still is not seen until then.
    pub fn new(
        device: D,
        settings: Settings,
        sink: impl Sink + Send + 'static,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self::with_log(device, settings, Log::new(sink, clock), Says::Lines)
    }

    fn with_log(device: D, settings: Settings, log: Log, says: Says) -> Self {
        let (id, default_stream) = (DeviceId(device.info().device), device.default_stream());
        let mut inner = Inner::new(Pool::new(id, settings, device), log, says);
        inner.sample();
        let pool = Self {
            shared: Arc::new(Shared {
                number: unique_number(),
                default_stream,
                inner: Mutex::new(inner),
                observers: Observers::default(),
            }),
        };
        pool.let_recorder_look();
        pool
    }

    /// Has the recorder look at this pool where events were dropped: the program may ask it for nothing for a long time.
    fn let_recorder_look(&self) {
        let weak = Arc::downgrade(&self.shared);
        let look = move || {
            let Some(shared) = weak.upgrade() else { return false };
            // A program that is asking will catch up by itself.
            if let Ok(mut inner) = shared.inner.try_lock()
                && inner.log.may_catch_up()
            {
                inner.catch_up();
            }
            true
        };
        if let Log::Recording { handle } = &self.lock().log {
            handle.let_recorder_call(Box::new(look));
        }
    }

    /// A pool over `device` that is recorded. That costs less than to [make](Self::new) one with a clone of the handle as sink and clock.
    pub fn recorded(device: D, settings: Settings, recorder: &RecorderHandle) -> Self {
        Self::with_log(device, settings, Log::Recording { handle: recorder.saying_state() }, Says::Lines)
    }

    /// The same, but of where memory was asked for its events say the scope alone: for a library that stands between a program and the pool, whose
    /// own lines would say nothing.
    pub fn recorded_by_scope(device: D, settings: Settings, recorder: &RecorderHandle) -> Self {
        Self::with_log(device, settings, Log::Recording { handle: recorder.saying_state() }, Says::Scopes)
    }

    /// # Panics
    /// When a thread has panicked half way through a change of the pool, and in a free-memory callback of the pool.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        self.try_lock().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same where there is an error to give.
    #[inline]
    pub(crate) fn try_lock(&self) -> Result<MutexGuard<'_, Inner<D>>, DeviceError> {
        if callback::is_asking(self.shared.number) {
            return Err(failed("a free-memory callback may drop buffers of its pool and ask nothing else of it"));
        }
        let broken = "a thread panicked half way through a change of the pool, which can hand out no memory since";
        self.shared.inner.lock().map_err(|_| failed(broken))
    }

    pub(crate) fn downgrade(&self) -> WeakPool<D> {
        WeakPool(Arc::downgrade(&self.shared))
    }

    pub(crate) fn default_stream(&self) -> &D::Stream {
        &self.shared.default_stream
    }

    /// [`Scope::open`], for whoever has a pool at hand; the scope holds for every pool.
    pub fn scope(&self, name: &str) -> Scope {
        Scope::open(name)
    }

    /// [`Scope::open_with`], likewise.
    pub fn scope_with(&self, name: &str, category: Category) -> Scope {
        Scope::open_with(name, category)
    }

    /// [`Scope::of`], likewise.
    pub fn category(&self, category: Category) -> Scope {
        Scope::of(category)
    }

    /// Whether what happens is recorded, as it is from the beginning. While it is not, events are counted. When it is again, the recording is told how
    /// many there were, as events that were lost, and what the pool looks like.
    pub fn set_recording(&self, recording: bool) {
        let mut inner = self.lock();
        let device = inner.pool.id();
        if let Log::Recording { handle } = &mut inner.log {
            handle.set_paused(device, !recording);
        }
        if recording {
            inner.catch_up();
        }
    }

    /// From now on what is recorded of a request says not the line that asked alone but the functions around it, up to `max_frames` of
    /// them; 0 ends that. It costs some microseconds a request, and some milliseconds at the first through a function, whose name is looked up
    /// then: `docs/benchmarks.md` has the figures. The names are those that the program was built with; without `debug` there are no lines.
    pub fn record_native_stacks(&self, max_frames: usize) {
        self.lock().sites.record_stacks(max_frames);
    }

    /// Records a named moment.
    pub fn mark(&self, name: &str) {
        self.put_mark(&mut self.lock(), AnnotationStage::Instant, name);
    }

    /// Records the beginning of something named, and its end when what is returned is dropped.
    pub fn span(&self, name: impl Into<String>) -> Span<D> {
        let name = name.into();
        self.put_mark(&mut self.lock(), AnnotationStage::Begin, &name);
        Span { pool: self.clone(), name }
    }

    fn put_mark(&self, inner: &mut Inner<D>, stage: AnnotationStage, name: &str) {
        let name = inner.sites.name(name, &mut inner.log);
        let (device, time_ns) = (inner.pool.id(), inner.now());
        inner.log.event(&Event { device, time_ns, kind: EventKind::Mark { stage, name, address: 0, site: SiteId(0) } });
    }

    /// Gives every segment in which no block is live back to the device.
    ///
    /// # Errors
    /// When the device does not take one.
    #[track_caller]
    pub fn empty_cache(&self) -> Result<(), DeviceError> {
        let mut inner = self.try_lock()?;
        self.change(&mut inner, Location::caller(), |pool, origin, told, _| pool.empty_cache(origin, told))
    }

    /// What the pool did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().pool.stats()
    }

    /// From now on `observer` is told of each request that there was no room for, after the pool has tried everything and before the
    /// program gets the error. The pool can be used meanwhile; what is then asked for in vain is not told.
    pub fn attach_out_of_memory_observer(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.shared.observers.push(observer);
    }

    /// From now on `callback` is run where no free block fits a request, before the device is asked for more memory. Buffers of
    /// this pool that it drops are used for the request. It must ask nothing else of the pool, nor wait for a thread that does: the
    /// others wait until it is done.
    pub fn register_free_memory_callback(&self, callback: impl FnMut() + Send + 'static) {
        self.lock().callbacks.push(Box::new(callback));
    }

    /// Where and when this call is, with the log told of it.
    #[inline]
    fn origin(&self, inner: &mut Inner<D>, location: &'static Location<'static>) -> Origin {
        let mut origin = Origin::default();
        if inner.log.may_catch_up() {
            inner.catch_up();
        }
        if inner.log.wants_sites() {
            origin.site = inner.sites.site(Context::current(), location, &mut inner.log);
        }
        origin.time_ns = inner.time_of_call();
        origin
    }

    /// Does something to the pool of which events tell. Where segments came or went, what is held outside the pool is looked at, too.
    fn change<R>(
        &self,
        inner: &mut Inner<D>,
        location: &'static Location<'static>,
        change: impl FnOnce(&mut Pool<D>, Origin, &mut Told<'_>, &mut FreeMemoryCallbacks) -> R,
    ) -> R {
        let origin = self.origin(inner, location);
        let Inner { pool, log, callbacks, .. } = inner;
        let mut told = Told::new(log);
        let changed = change(pool, origin, &mut told, callbacks);
        if told.segments {
            inner.sample_again();
        }
        changed
    }

    pub(crate) fn allocate(&self, stream: &D::Stream, request: Request) -> Result<Option<AllocatedBlock>, AllocateError> {
        if request.bytes == 0 {
            return Ok(None);
        }
        let mut inner = self.try_lock()?;
        let stream = inner.pool.device_mut().stream_id(stream)?;
        self.serve(inner, stream, request)
    }

    pub(crate) fn allocate_by_id(
        &self,
        stream: StreamId,
        request: Request,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        self.serve(self.try_lock()?, stream, request)
    }

    fn serve(
        &self,
        mut inner: MutexGuard<'_, Inner<D>>,
        stream: StreamId,
        Request { bytes, mempool, location }: Request,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        let mut served = self.change(&mut inner, location, |pool, origin, told, callbacks| {
            let ask = &mut || callbacks.ask(self.shared.number);
            pool.allocate_with_callback(mempool, bytes, stream, origin, told, ask)
        });
        if let Some(panic) = inner.callbacks.take_panic() {
            if let Ok(Some(block)) = served {
                // Nobody will ever have it. That the device may fail at this loses no more than the block.
                let _ = self.give_back(&mut inner, block.address, location);
            }
            drop(inner);
            resume_unwind(panic);
        }
        if let Err(AllocateError::OutOfMemory(details)) = &mut served {
            let usage = inner.sample();
            details.process_bytes = usage.map(|usage| usage.process_bytes);
            details.other_processes_bytes = usage.map(|usage| usage.other_processes_bytes);
            drop(inner);
            self.shared.observers.tell(details);
        }
        served
    }

    /// Takes back a block that [`allocate`](Self::allocate) handed out and that is not free yet.
    pub(crate) fn free(&self, address: u64, location: &'static Location<'static>) {
        if callback::give_up(self.shared.number, address) {
            return;
        }
        // Where a panic left the pool in the middle of a change, losing the block is the one thing that is surely harmless.
        let Ok(mut inner) = self.shared.inner.lock() else { return };
        match self.give_back(&mut inner, address, location) {
            // With an error of the device nothing has happened, and the block is lost.
            Ok(()) | Err(FreeError::Device(_)) => {}
            Err(error) => panic!("a buffer's block is live until the buffer frees it: {error}"),
        }
    }

    /// See [`PoolSlice::record_stream`](crate::PoolSlice::record_stream).
    pub(crate) fn record_stream(&self, address: u64, stream: &D::Stream) -> Result<(), FreeError> {
        let mut inner = self.try_lock().map_err(FreeError::Device)?;
        let stream = inner.pool.device_mut().stream_id(stream)?;
        inner.pool.record_stream(address, stream)
    }

    pub(crate) fn record_stream_by_id(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.try_lock().map_err(FreeError::Device)?.pool.record_stream(address, stream)
    }

    pub(crate) fn free_address(&self, address: u64, location: &'static Location<'static>) -> Result<(), FreeError> {
        if callback::give_up(self.shared.number, address) {
            return Ok(());
        }
        let mut inner = self.try_lock().map_err(FreeError::Device)?;
        self.give_back(&mut inner, address, location)
    }

    fn give_back(
        &self,
        inner: &mut Inner<D>,
        address: u64,
        location: &'static Location<'static>,
    ) -> Result<(), FreeError> {
        self.change(inner, location, |pool, origin, told, _| pool.free(address, origin, told))
    }
}

#[cold]
fn failed(reason: &str) -> DeviceError {
    DeviceError::Failed(reason.to_owned())
}

/// A pool, for whoever should not be the one that keeps it.
pub(crate) struct WeakPool<D: MemoryDevice>(Weak<Shared<D>>);

impl<D: MemoryDevice> WeakPool<D> {
    /// The pool, where there is somebody else who has it.
    pub(crate) fn upgrade(&self) -> Option<DevicePool<D>> {
        self.0.upgrade().map(|shared| DevicePool { shared })
    }
}

impl<D: MemoryDevice> Clone for DevicePool<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D: MemoryDevice> fmt::Debug for DevicePool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePool").field("number", &self.shared.number).finish_non_exhaustive()
    }
}

/// Something named that is going on; see [`DevicePool::span`].
#[must_use = "a span ends when this is dropped"]
#[derive(Debug)]
pub struct Span<D: MemoryDevice = HostDevice> {
    pool: DevicePool<D>,
    name: String,
}

impl<D: MemoryDevice> Drop for Span<D> {
    fn drop(&mut self) {
        // After a panic in the middle of a change the recording is over anyway; in a free-memory callback the lock is held.
        if let Ok(mut inner) = self.pool.try_lock() {
            self.pool.put_mark(&mut inner, AnnotationStage::End, &self.name);
        }
    }
}
