//! The pool as a program uses it: shared by its threads, recorded, and told by scopes what memory is for.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

use vramscope_pool::{AllocateError, Allocated, DeviceError, FreeError, Origin, Pool, Settings, Stats};
use vramscope_trace::{Category, DeviceId, Event, EventKind, Sink, Stage, StreamId};

use crate::host::HostDevice;
use crate::memory::MemoryDevice;
use crate::scope::{Context, Scope, Sites, unique_number};

/// A caching allocator over the memory of a device. Clones are the same pool.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool};
/// use vramscope_pool::Settings;
/// use vramscope_trace::{Category, Null};
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
    /// Tells this pool's scopes from those of others.
    number: u64,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    default_stream: D::Stream,
    inner: Mutex<Inner<D>>,
}

/// What the lock guards. The clock is read and the sink told under it, so that definitions come before what uses them and events
/// in the order of their times.
struct Inner<D> {
    pool: Pool<D>,
    sites: Sites,
    sink: Box<dyn Sink + Send>,
}

impl<D> Inner<D> {
    fn tell_definitions(&mut self) {
        self.sites.tell_fresh(&mut *self.sink);
    }
}

impl<D: MemoryDevice> DevicePool<D> {
    /// A pool over `device` whose events go to `sink` and have the times that `clock` says.
    pub fn new(
        device: D,
        settings: Settings,
        sink: impl Sink + Send + 'static,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let (id, default_stream) = (DeviceId(device.info().device), device.default_stream());
        let pool = Pool::new(id, settings, device);
        let inner = Mutex::new(Inner { pool, sites: Sites::default(), sink: Box::new(sink) });
        Self { shared: Arc::new(Shared { number: unique_number(), clock: Box::new(clock), default_stream, inner }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        self.shared.inner.lock().expect("a pool that panicked half way through a change can hand out no memory")
    }

    pub(crate) fn default_stream(&self) -> &D::Stream {
        &self.shared.default_stream
    }

    /// Opens a scope: until it is dropped, what this thread asks for is said to be asked for in `name`, inside the scopes that are
    /// open already.
    pub fn scope(&self, name: &str) -> Scope {
        let category = Context::current(self.shared.number).category;
        self.scope_with(name, category)
    }

    /// Opens a scope, and says what memory asked for in it is for.
    pub fn scope_with(&self, name: &str, category: Category) -> Scope {
        let outer = Context::current(self.shared.number);
        let path = self.lock().sites.path(outer.path, name);
        Scope::open(self.shared.number, Context { path, category })
    }

    /// Says what memory asked for from now on is for, until it is dropped, without opening a scope of another name.
    pub fn category(&self, category: Category) -> Scope {
        let context = Context { category, ..Context::current(self.shared.number) };
        Scope::open(self.shared.number, context)
    }

    /// Records a named moment.
    pub fn mark(&self, name: &str) {
        self.put_mark(&mut self.lock(), Stage::Instant, name);
    }

    /// Records the beginning of something named, and its end when what is returned is dropped.
    pub fn span(&self, name: impl Into<String>) -> Span<D> {
        let name = name.into();
        self.put_mark(&mut self.lock(), Stage::Begin, &name);
        Span { pool: self.clone(), name }
    }

    fn put_mark(&self, inner: &mut Inner<D>, stage: Stage, name: &str) {
        let name = inner.sites.string(name);
        inner.tell_definitions();
        let (device, time_ns) = (inner.pool.id(), (self.shared.clock)());
        inner.sink.event(&Event { device, time_ns, kind: EventKind::Mark { stage, name } });
    }

    /// Gives every segment in which no block is live back to the operating system.
    ///
    /// # Errors
    /// When the operating system does not take one.
    #[track_caller]
    pub fn empty_cache(&self) -> Result<(), DeviceError> {
        let mut inner = self.lock();
        let origin = self.origin(&mut inner, Location::caller());
        let Inner { pool, sink, .. } = &mut *inner;
        pool.empty_cache(origin, &mut **sink)
    }

    /// What the pool did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().pool.stats()
    }

    /// Where and when this call is, with the sink told of it.
    fn origin(&self, inner: &mut Inner<D>, location: &'static Location<'static>) -> Origin {
        let site = inner.sites.site(Context::current(self.shared.number), location);
        inner.tell_definitions();
        Origin { site, time_ns: (self.shared.clock)() }
    }

    pub(crate) fn allocate(
        &self,
        bytes: u64,
        stream: &D::Stream,
        location: &'static Location<'static>,
    ) -> Result<Option<Allocated>, AllocateError> {
        let mut inner = self.lock();
        let stream = inner.pool.device_mut().stream_id(stream);
        self.serve(&mut inner, bytes, stream, location)
    }

    pub(crate) fn allocate_by_id(
        &self,
        bytes: u64,
        stream: StreamId,
        location: &'static Location<'static>,
    ) -> Result<Option<Allocated>, AllocateError> {
        self.serve(&mut self.lock(), bytes, stream, location)
    }

    fn serve(
        &self,
        inner: &mut Inner<D>,
        bytes: u64,
        stream: StreamId,
        location: &'static Location<'static>,
    ) -> Result<Option<Allocated>, AllocateError> {
        let origin = self.origin(inner, location);
        let Inner { pool, sink, .. } = inner;
        pool.allocate(bytes, stream, origin, &mut **sink)
    }

    /// Takes back a block that [`allocate`](Self::allocate) handed out and that is not free yet.
    pub(crate) fn free(&self, address: u64, location: &'static Location<'static>) {
        // Where a panic left the pool in the middle of a change, losing the block is the one thing that is surely harmless.
        let Ok(mut inner) = self.shared.inner.lock() else { return };
        self.give_back(&mut inner, address, location).expect("a buffer's block is live until the buffer frees it");
    }

    pub(crate) fn free_address(&self, address: u64, location: &'static Location<'static>) -> Result<(), FreeError> {
        self.give_back(&mut self.lock(), address, location)
    }

    fn give_back(
        &self,
        inner: &mut Inner<D>,
        address: u64,
        location: &'static Location<'static>,
    ) -> Result<(), FreeError> {
        let origin = self.origin(inner, location);
        let Inner { pool, sink, .. } = inner;
        pool.free(address, origin, &mut **sink)
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
        // After a panic in the middle of a change the recording is over anyway.
        if let Ok(mut inner) = self.pool.shared.inner.lock() {
            self.pool.put_mark(&mut inner, Stage::End, &self.name);
        }
    }
}
