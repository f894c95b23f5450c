//! The pool for programs: shared by threads, recorded, with scopes.

use std::fmt;
use std::panic::{Location, resume_unwind};
#[cfg(feature = "server")]
use std::sync::Weak;
use std::sync::{Arc, Mutex};

use vramscope_pool::{
    AllocateError, AllocatedBlock, DeviceError, FreeError, Origin, OutOfMemory, Pool, Settings, Stats,
};
use vramscope_trace::{
    AnnotationStage, Category, DeviceId, DeviceState, Event, EventKind, MempoolId, Sink, SiteId, StreamId,
};

use crate::callback::{self, FreeMemoryCallbacks, Observers};
use crate::host::HostDevice;
use crate::memory::MemoryDevice;
use crate::recorded_pool::{EventLog, RecordedPool, SegmentWatcher};
use crate::recorder::RecorderHandle;
use crate::scope::{Context, Scope, unique_number};
use crate::sites::SiteDetail;
use crate::wait_check::{CheckedGuard, Wait};

/// A caching allocator over a device's memory. Clones share the pool.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool};
/// use vramscope_pool::Settings;
/// use vramscope_trace::{Category, NullSink};
///
/// let started = std::time::Instant::now();
/// let device = HostDevice::new(64 << 20);
/// let clock = move || started.elapsed().as_nanos() as u64;
/// let pool = HostPool::new(device, Settings::default(), NullSink, clock);
/// let _step = pool.scope("step");
/// let _forward = pool.scope_with("forward", Category::Activation);
/// let mut hidden = pool.alloc_zeros::<f32>(1024)?;
/// hidden[7] = 1.0;
/// # Ok::<(), vramscope_collector::AllocateError>(())
/// ```
pub struct DevicePool<D: MemoryDevice> {
    shared: Arc<PoolState<D>>,
}

/// A pool over the host's memory.
pub type HostPool = DevicePool<HostDevice>;

/// State that all clones of a [`DevicePool`] share: the locked pool, its number, default stream and
/// out-of-memory observers.
struct PoolState<D: MemoryDevice> {
    /// Number of this pool, unique in the process.
    number: u64,
    default_stream: D::Stream,
    inner: Mutex<RecordedPool<D>>,
    observers: Observers,
}

/// A request for memory, except for its stream: its size in bytes, private pool and source line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    /// The private pool to use, regardless of redirected requests.
    pub(crate) mempool: Option<MempoolId>,
    pub(crate) location: &'static Location<'static>,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// Creates a pool whose events go to `sink`, with times in nanoseconds from `clock`.
    ///
    /// With [`NullSink`](vramscope_trace::NullSink) as sink, neither the clock nor source locations
    /// are read. [`recorded`](Self::recorded) is faster for a recorder.
    ///
    /// Sink and clock are called under the pool's lock. If one of them uses the pool or drops a
    /// buffer of it, it deadlocks.
    ///
    /// The whole device's memory is sampled when the pool is created, when segments change (at most
    /// ten times a second) and at out-of-memory. What other processes allocate in between is seen
    /// at the next sample.
    pub fn new(
        device: D,
        settings: Settings,
        sink: impl Sink + Send + 'static,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self::with_log(device, settings, EventLog::new(sink, clock), SiteDetail::Lines)
    }

    /// Creates a pool with the allocator settings `settings`, whose events go to `log`. `detail`
    /// says what its sites contain besides scope and category.
    fn with_log(device: D, settings: Settings, log: EventLog, detail: SiteDetail) -> Self {
        let (id, default_stream) = (DeviceId(device.info().device), device.default_stream());
        let mut inner = RecordedPool::new(Pool::new(id, settings, device), log, detail);
        inner.sample();
        let (number, inner, observers) = (unique_number(), Mutex::new(inner), Observers::default());
        let pool = Self { shared: Arc::new(PoolState { number, default_stream, inner, observers }) };
        pool.register_catch_up();
        pool
    }

    /// Registers a callback with which the recorder records the pool's state after dropped events.
    /// Otherwise the pool's next call records it, but the program may make no more calls.
    fn register_catch_up(&self) {
        let weak = Arc::downgrade(&self.shared);
        let callback = move || {
            let Some(shared) = weak.upgrade() else { return false };
            // If the lock is taken, a call is in progress and records the state itself.
            if let Ok(mut inner) = shared.inner.try_lock()
                && inner.log.may_catch_up()
            {
                inner.catch_up();
            }
            true
        };
        if let EventLog::Recording { handle } = &self.lock().log {
            handle.register_catch_up(Box::new(callback));
        }
    }

    /// Creates a pool whose events are recorded by the recorder of this handle.
    pub fn recorded(device: D, settings: Settings, recorder: &RecorderHandle) -> Self {
        Self::with_log(device, settings, EventLog::Recording { handle: recorder.providing_state() }, SiteDetail::Lines)
    }

    /// Creates a recorded pool whose sites contain the scope but no source location; for libraries
    /// between a program and the pool, whose source lines do not identify the program's requests.
    pub fn recorded_by_scope(device: D, settings: Settings, recorder: &RecorderHandle) -> Self {
        Self::with_log(device, settings, EventLog::Recording { handle: recorder.providing_state() }, SiteDetail::Scopes)
    }

    /// Records later events by the recorder of this handle, beginning with the pool's present
    /// state. Its sites contain the scope but no source location; blocks that exist already have
    /// no site. Replaces an earlier recorder.
    pub fn record_by_scope(&self, recorder: &RecorderHandle) {
        self.lock().record_to(recorder.providing_state(), SiteDetail::Scopes);
        self.register_catch_up();
    }

    /// Returns the pool's segments and its allocated or pending-free blocks, as a recording of the
    /// pool has them. The ages of blocks are unknown, 0.
    #[must_use]
    pub fn memory_state(&self) -> DeviceState {
        self.lock().memory_state()
    }

    /// Locks the pool.
    ///
    /// # Panics
    /// If a thread panicked during a change of the pool, or inside a free-memory callback of this
    /// pool.
    pub(crate) fn lock(&self) -> CheckedGuard<'_, RecordedPool<D>> {
        self.try_lock().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Locks the pool, or returns an error in the cases in which [`lock`](Self::lock) panics.
    #[inline]
    pub(crate) fn try_lock(&self) -> Result<CheckedGuard<'_, RecordedPool<D>>, DeviceError> {
        if callback::is_running_callback(self.shared.number) {
            return Err(device_error("a free-memory callback may only drop buffers of its pool, not use the pool"));
        }
        let broken = "the pool is unusable because a thread panicked while changing it";
        let locked = self.shared.inner.lock().map_err(|_| device_error(broken))?;
        Ok(CheckedGuard::new(locked, Wait::Hub))
    }

    /// Returns a weak reference, which does not keep the pool alive.
    #[cfg(feature = "server")]
    pub(crate) fn downgrade(&self) -> WeakPool<D> {
        WeakPool(Arc::downgrade(&self.shared))
    }

    /// Returns the stream for requests that do not name a stream.
    pub(crate) fn default_stream(&self) -> &D::Stream {
        &self.shared.default_stream
    }

    /// Opens a named scope on this thread, which applies to its requests from all pools; see
    /// [`Scope::open`].
    pub fn scope(&self, name: &str) -> Scope {
        Scope::open(name)
    }

    /// Opens a named scope on this thread and sets the category of allocations in it; see
    /// [`Scope::open_with`].
    pub fn scope_with(&self, name: &str, category: Category) -> Scope {
        Scope::open_with(name, category)
    }

    /// Sets the category of this thread's allocations until the result is dropped; see
    /// [`Scope::of`].
    pub fn category(&self, category: Category) -> Scope {
        Scope::of(category)
    }

    /// Turns recording of this pool on (true) or off; it is on at first. Events while it is off are
    /// counted as lost, and the pool's state is recorded when recording resumes.
    pub fn set_recording(&self, recording: bool) {
        let mut inner = self.lock();
        let device = inner.pool.id();
        if let EventLog::Recording { handle } = &mut inner.log {
            handle.set_paused(device, !recording);
        }
        if recording {
            inner.catch_up();
        }
    }

    /// Records call stacks of up to `max_frames` frames for later requests, instead of single
    /// source lines; 0 turns that off again.
    ///
    /// It costs some microseconds a request, and some milliseconds when a function is seen first,
    /// to look up its name; see `docs/benchmarks.md`. Names come from the program's symbols; line
    /// numbers need debug information.
    #[cfg(feature = "native-stacks")]
    pub fn record_native_stacks(&self, max_frames: usize) {
        self.lock().sites.record_stacks(max_frames);
    }

    /// Records a mark, a named moment, at the current time.
    pub fn mark(&self, name: &str) {
        self.record_mark(&mut self.lock(), AnnotationStage::Instant, name);
    }

    /// Records the beginning of a named span, whose end is recorded when the result is dropped.
    pub fn span(&self, name: impl Into<String>) -> Span<D> {
        let name = name.into();
        self.record_mark(&mut self.lock(), AnnotationStage::Begin, &name);
        Span { pool: self.clone(), name }
    }

    /// Records the beginning, the end or the single moment (`stage`) of the annotation `name`, in a
    /// locked pool.
    fn record_mark(&self, inner: &mut RecordedPool<D>, stage: AnnotationStage, name: &str) {
        let name = inner.sites.name(name, &mut inner.log);
        let (device, time_ns) = (inner.pool.id(), inner.now());
        inner.log.event(&Event { device, time_ns, kind: EventKind::Mark { stage, name, address: 0, site: SiteId(0) } });
    }

    /// Releases all cached (free) segments to the device, like `torch.cuda.empty_cache`.
    ///
    /// # Errors
    /// If the device fails to release a segment.
    #[track_caller]
    pub fn empty_cache(&self) -> Result<(), DeviceError> {
        let mut inner = self.try_lock()?;
        self.change(&mut inner, Location::caller(), |pool, origin, watcher, _| pool.empty_cache(origin, watcher))
    }

    /// Returns the pool's statistics: current, peak and total bytes and numbers of blocks and
    /// segments, named as in `torch.cuda.memory_stats()`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().pool.stats()
    }

    /// Registers a function that is called on out-of-memory, after all retries and before the
    /// request returns its error. The observer may use the pool; out-of-memory that it causes
    /// itself is not reported.
    pub fn attach_out_of_memory_observer(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.shared.observers.push(observer);
    }

    /// Registers a function that can free memory when no free block fits a request, before the pool
    /// requests a segment from the device.
    ///
    /// Buffers of this pool that it drops are available to the request. It must not use the pool in
    /// another way, nor wait for a thread that does: all others wait for the callback.
    pub fn register_free_memory_callback(&self, callback: impl FnMut() + Send + 'static) {
        self.lock().callbacks.push(Box::new(callback));
    }

    /// Returns the [`Origin`] of a call's events: the site of source line `location`, and the time.
    /// First records the pool's state if events were dropped before.
    #[inline]
    fn origin(&self, inner: &mut RecordedPool<D>, location: &'static Location<'static>) -> Origin {
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

    /// Runs one call of the program that changes the pool: passes `change` the pool, the call's
    /// site and time, the sink of its events and the free-memory callbacks, and returns its result.
    /// Samples the device's memory if segments change.
    fn change<R>(
        &self,
        inner: &mut RecordedPool<D>,
        location: &'static Location<'static>,
        change: impl FnOnce(&mut Pool<D>, Origin, &mut SegmentWatcher<'_>, &mut FreeMemoryCallbacks) -> R,
    ) -> R {
        let origin = self.origin(inner, location);
        let RecordedPool { pool, log, callbacks, .. } = inner;
        let mut watcher = SegmentWatcher::new(log);
        let changed = change(pool, origin, &mut watcher, callbacks);
        if watcher.segments_changed {
            inner.sample_again();
        }
        changed
    }

    /// Allocates a block for work on `stream`. Returns `None` for a request of 0 bytes.
    pub(crate) fn allocate(
        &self,
        stream: &D::Stream,
        request: Request,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        if request.bytes == 0 {
            return Ok(None);
        }
        let mut inner = self.try_lock()?;
        let stream = inner.pool.device_mut().stream_id(stream)?;
        self.allocate_locked(inner, stream, request)
    }

    /// Allocates a block for work on the stream with number `stream`. Returns `None` for a request
    /// of 0 bytes.
    pub(crate) fn allocate_by_id(
        &self,
        stream: StreamId,
        request: Request,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        self.allocate_locked(self.try_lock()?, stream, request)
    }

    /// Allocates a block in the locked pool `inner` and unlocks it. Resumes a panic of a
    /// free-memory callback; calls the observers if the device is out of memory.
    fn allocate_locked(
        &self,
        mut inner: CheckedGuard<'_, RecordedPool<D>>,
        stream: StreamId,
        Request { bytes, mempool, location }: Request,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        let mut result = self.change(&mut inner, location, |pool, origin, watcher, callbacks| {
            let free_memory = &mut || callbacks.run(self.shared.number);
            pool.allocate_with_callback(mempool, bytes, stream, origin, watcher, free_memory)
        });
        if let Some(panic) = inner.callbacks.take_panic() {
            if let Ok(Some(block)) = result {
                // The caller gets the panic instead of the block. If the device fails here, the
                // block leaks; nothing else is affected.
                let _ = self.free_block(&mut inner, block.address, location);
            }
            drop(inner);
            resume_unwind(panic);
        }
        if let Err(AllocateError::OutOfMemory(details)) = &mut result {
            let usage = inner.sample();
            details.process_bytes = usage.map(|usage| usage.process_bytes);
            details.other_processes_bytes = usage.map(|usage| usage.other_processes_bytes);
            drop(inner);
            self.shared.observers.notify(details);
        }
        result
    }

    /// Frees the live block at `address`, which [`allocate`](Self::allocate) returned. If the
    /// device or the pool has failed, the block leaks. `location` is the source line of the call.
    ///
    /// # Panics
    /// If no live block begins at `address`.
    pub(crate) fn free(&self, address: u64, location: &'static Location<'static>) {
        if callback::defer_free(self.shared.number, address) {
            return;
        }
        // If a panic left the pool inconsistent, leaking the block is the only safe choice.
        let Ok(inner) = self.shared.inner.lock() else { return };
        let mut inner = CheckedGuard::new(inner, Wait::Hub);
        match self.free_block(&mut inner, address, location) {
            // If the device fails, the pool is unchanged and the block leaks.
            Ok(()) | Err(FreeError::Device(_)) => {}
            Err(error) => panic!("a buffer's block must be live until the buffer frees it: {error}"),
        }
    }

    /// Records that work on `stream` uses the block at `address`; see
    /// [`PoolSlice::record_stream`](crate::PoolSlice::record_stream).
    pub(crate) fn record_stream(&self, address: u64, stream: &D::Stream) -> Result<(), FreeError> {
        let mut inner = self.try_lock().map_err(FreeError::Device)?;
        let stream = inner.pool.device_mut().stream_id(stream)?;
        inner.pool.record_stream(address, stream)
    }

    /// Records that work on the stream with number `stream` uses the block at `address`; see
    /// [`PoolSlice::record_stream`](crate::PoolSlice::record_stream).
    pub(crate) fn record_stream_by_id(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.try_lock().map_err(FreeError::Device)?.pool.record_stream(address, stream)
    }

    /// Frees the block at `address`, or returns an error if no live block begins there. Inside a
    /// free-memory callback of this pool, the block is freed after the callback.
    pub(crate) fn free_address(&self, address: u64, location: &'static Location<'static>) -> Result<(), FreeError> {
        if callback::defer_free(self.shared.number, address) {
            return Ok(());
        }
        let mut inner = self.try_lock().map_err(FreeError::Device)?;
        self.free_block(&mut inner, address, location)
    }

    /// Frees the block at `address` in the locked pool and records the event. `location` is the
    /// source line of the call.
    fn free_block(
        &self,
        inner: &mut RecordedPool<D>,
        address: u64,
        location: &'static Location<'static>,
    ) -> Result<(), FreeError> {
        self.change(inner, location, |pool, origin, watcher, _| pool.free(address, origin, watcher))
    }
}

/// Returns the error, with the text `reason`, of a call that fails before it reaches the device.
#[cold]
fn device_error(reason: &str) -> DeviceError {
    DeviceError::Failed(reason.to_owned())
}

/// A weak reference to a pool, which does not keep the pool alive.
#[cfg(feature = "server")]
pub(crate) struct WeakPool<D: MemoryDevice>(Weak<PoolState<D>>);

#[cfg(feature = "server")]
impl<D: MemoryDevice> WeakPool<D> {
    /// Returns the pool, or `None` if all its strong references have been dropped.
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

/// A named interval of the recording, from [`DevicePool::span`]. Dropping it records the end.
#[must_use = "a span ends when this is dropped"]
#[derive(Debug)]
pub struct Span<D: MemoryDevice = HostDevice> {
    pool: DevicePool<D>,
    name: String,
}

impl<D: MemoryDevice> Drop for Span<D> {
    fn drop(&mut self) {
        // Locking fails after a panic, when the recording is over anyway, and inside a free-memory
        // callback. The end is then not recorded.
        if let Ok(mut inner) = self.pool.try_lock() {
            self.pool.record_mark(&mut inner, AnnotationStage::End, &self.name);
        }
    }
}
