//! The library's state in a process: settings, a pool for each GPU in use, one recording, and the
//! page.
//!
//! It is generic over the source of devices, so that tests can use host memory.

mod devices;
mod session;
mod snapshot;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramscope_collector::session::{Log, RecordingOptions};
use vramscope_collector::{AllocateError, DevicePool, FreeError, MemoryDevice, Settings};
use vramscope_pool::{CaptureFilter, MemoryStats, OutOfMemory};
use vramscope_trace::{AnnotationStage, Count, DeviceId, DeviceInfo, MempoolId, NullSink, RecordingInfo, StreamId};

use self::devices::{DeviceSlot, Devices};
use self::session::{Session, record_mark};
use crate::exception::Failure;

/// Name and version of this library, for the headers of recordings.
const WRITER: &str = concat!("vramscope-pluggable ", env!("CARGO_PKG_VERSION"));

/// Lists and opens the devices that pools allocate from: GPUs, or host memory in tests.
pub(crate) trait DeviceSource: Send + Sync + 'static {
    /// The device that a pool allocates from.
    type Device: MemoryDevice;

    /// Describes every device, in the order of their numbers from 0, without opening any. Fails
    /// with the reason in words.
    fn list(&self) -> Result<Vec<DeviceInfo>, String>;

    /// Opens the device with this number, from 0. Fails with the reason in words.
    fn open(&self, number: u16) -> Result<Self::Device, String>;
}

/// Why the program's request for memory failed: the device has no pool, or its pool could not serve
/// the request.
#[derive(Debug, PartialEq)]
pub(crate) enum RequestError {
    /// The device has no pool, for this reason.
    NoPool(String),
    /// The pool could not serve the request.
    Pool(AllocateError),
}

impl RequestError {
    /// Returns the kind of exception that reports this error.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Pool(AllocateError::OutOfMemory(_) | AllocateError::TooLarge { .. }) => Failure::OutOfMemory,
            Self::NoPool(_) | Self::Pool(_) => Failure::Other,
        }
    }
}

impl fmt::Display for RequestError {
    /// Begins with `vramscope: `, except for out of memory: programs recognize PyTorch's message by
    /// its beginning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPool(reason) => write!(f, "vramscope: cannot allocate: {reason}"),
            Self::Pool(error @ (AllocateError::OutOfMemory(_) | AllocateError::TooLarge { .. })) => {
                write!(f, "CUDA {error}")
            }
            Self::Pool(error) => write!(f, "vramscope: {error}"),
        }
    }
}

/// A function that is called at out-of-memory, before the request fails.
pub(crate) type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// Registers an observer with a pool.
fn attach<D: MemoryDevice>(pool: &DevicePool<D>, observer: &Observer) {
    let observer = Arc::clone(observer);
    pool.attach_out_of_memory_observer(move |details| observer(details));
}

/// Whether [`ProcessState::start_session`] started a recording or found one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionStart {
    /// A recording was started. Its page has this address, if it has one.
    Started(Option<String>),
    /// A recording is in progress already. Its page has this address, if it has one.
    InProgress(Option<String>),
}

/// A counter reset of `torch.cuda`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatsReset {
    /// Sets the peaks to the current values.
    Peaks,
    /// Sets the totals, which only grow, to 0.
    Accumulated,
}

/// The library's state in a process: the pools of all devices, the recording, and the page's
/// server. At exit only the recording and the server end: PyTorch frees memory until the process
/// ends.
///
/// Locks are taken in this order: the listing of devices, the fractions by device number, the
/// settings, the session, the observers, a pool.
pub(crate) struct ProcessState<S: DeviceSource> {
    source: S,
    log: Log,
    /// The settings of pools that do not exist yet.
    settings: Mutex<Settings>,
    /// The devices and their pools. With invalid settings, no device can be used.
    devices: Devices<S::Device>,
    session: Mutex<Session>,
    /// Functions that are called at out-of-memory on any device.
    observers: Mutex<Vec<Observer>>,
}

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded values are replaced as a whole, so a panic leaves none half set.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns in words that a device does not exist, in a process that sees `count` devices.
#[cold]
fn missing_device(device: i32, count: usize) -> String {
    let devices = Count(count as u64).of("device", "devices");
    format!("there is no device {device}: this process sees {devices}")
}

impl<S: DeviceSource> ProcessState<S> {
    /// Creates the state and, if requested, serves the page. Does not use the source of devices.
    pub(crate) fn new(source: S, settings: Result<Settings, String>, options: RecordingOptions, log: Log) -> Self {
        // With invalid settings every request fails. Using other settings instead would change the
        // program's memory use silently.
        let (settings, failure) =
            settings.map_or_else(|reason| (Settings::default(), Some(reason)), |settings| (settings, None));
        let options = RecordingOptions { listen: options.listen.filter(|_| failure.is_none()), ..options };
        let session = Session::open(options, false, &log);
        Self {
            source,
            log,
            settings: Mutex::new(settings),
            devices: Devices::new(failure),
            session: Mutex::new(session),
            observers: Mutex::default(),
        }
    }

    /// Lists the devices, which initializes the driver, unless the program has already used a
    /// device. If this fails, each later request fails with the reason.
    pub(crate) fn list_devices(&self) {
        let _ = self.devices.list(|| self.source.list());
    }

    /// Returns the number and the slot (pool and memory fraction) of a device, and lists the
    /// devices first if necessary. Fails if the device does not exist or no device can be used.
    #[inline]
    fn listed_slot(&self, device: i32) -> Result<(u16, &DeviceSlot<S::Device>), String> {
        let slots = self.devices.list(|| self.source.list())?;
        let found = u16::try_from(device).ok().and_then(|number| Some((number, slots.get(usize::from(number))?)));
        found.ok_or_else(|| missing_device(device, slots.len()))
    }

    /// Returns the slot of a device; `None` if this process sees no device with this number or has
    /// used none yet.
    #[inline]
    fn slot(&self, device: i32) -> Option<&DeviceSlot<S::Device>> {
        self.devices.slots().get(usize::try_from(device).ok()?)
    }

    /// Returns the pool of a device; `None` if the device has no pool.
    #[inline]
    fn existing_pool(&self, device: i32) -> Option<&DevicePool<S::Device>> {
        self.slot(device)?.existing_pool()
    }

    /// Returns the device's pool, which the first call creates. Fails with the reason why the
    /// device has no pool.
    #[inline]
    pub(crate) fn pool(&self, device: i32) -> Result<&DevicePool<S::Device>, String> {
        let (number, slot) = self.listed_slot(device)?;
        slot.pool.get().unwrap_or_else(|| self.create_pool(number, slot)).as_ref().map_err(String::clone)
    }

    /// Creates the device's pool, unless another thread has just done so. Returns the pool, or the
    /// reason why it cannot be created.
    #[cold]
    fn create_pool<'a>(
        &self,
        number: u16,
        slot: &'a DeviceSlot<S::Device>,
    ) -> &'a Result<DevicePool<S::Device>, String> {
        // Locked until the pool exists, so that a fraction set meanwhile is not lost.
        let fraction = slot.lock_fraction();
        slot.pool.get_or_init(|| self.open(number, *fraction))
    }

    /// Opens a device and creates its pool; the first call also starts the recording. `fraction` is
    /// the share of the device's memory, from 0 to 1, that the pool may reserve; `None` for the
    /// share in the settings.
    fn open(&self, number: u16, fraction: Option<f64>) -> Result<DevicePool<S::Device>, String> {
        let device = self.source.open(number).map_err(|reason| format!("device {number}: {reason}"))?;
        let mut settings = lock(&self.settings).clone();
        if let Some(fraction) = fraction {
            settings.per_process_memory_fraction = fraction;
        }
        let mut session = lock(&self.session);
        session.start(|| self.recording_info(&settings), DeviceId(number), &self.log);
        let pool = match session.handle() {
            // Sites have only the scope, because PyTorch passes no call stack to an allocator.
            Some(handle) => DevicePool::recorded_by_scope(device, settings, &handle),
            // Without a recording, times are not used.
            None => DevicePool::new(device, settings, NullSink, || 0),
        };
        lock(&self.observers).iter().for_each(|observer| attach(&pool, observer));
        Ok(pool)
    }

    /// Returns the header of a recording that starts now. The history of devices that already have
    /// a pool is marked as incomplete.
    fn recording_info(&self, settings: &Settings) -> RecordingInfo {
        let mut devices = self.devices.infos().to_vec();
        for (info, slot) in devices.iter_mut().zip(self.devices.slots()) {
            let is_used = slot.existing_pool().is_some_and(|pool| pool.memory_reserved() > 0);
            info.history_complete = !is_used;
        }
        RecordingInfo { writer: WRITER.to_owned(), alloc_conf: settings.to_conf(), devices, ..RecordingInfo::default() }
    }

    /// Iterates over the pools created so far, with the numbers of their devices.
    fn pools(&self) -> impl Iterator<Item = (u16, &DevicePool<S::Device>)> {
        let pools = self.devices.slots().iter().map(DeviceSlot::existing_pool);
        (0..).zip(pools).filter_map(|(number, pool)| Some((number, pool?)))
    }

    /// Allocates `bytes` of device memory for use on `stream` and returns its address; `None` for 0
    /// bytes.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64, device: i32, stream: StreamId) -> Result<Option<u64>, RequestError> {
        let pool = self.pool(device).map_err(RequestError::NoPool)?;
        pool.caching_allocator_alloc(bytes, stream).map_err(RequestError::Pool)
    }

    /// Frees the block at `address`, which [`allocate`](Self::allocate) returned for this device.
    /// Fails if no such block is allocated.
    #[inline]
    pub(crate) fn free(&self, address: u64, device: i32) -> Result<(), FreeError> {
        let pool = self.existing_pool(device);
        // SAFETY: These pools create no slices, and PyTorch frees memory only when it has stopped
        // using it.
        unsafe { pool.ok_or(FreeError::UnknownAddress { address })?.caching_allocator_delete(address) }
    }

    /// Records that work on `stream` uses the block at `address`, on whichever device it is, so
    /// that the block is not reused before that work is done. Fails if no such block is allocated.
    pub(crate) fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        // PyTorch does not pass the device; addresses of several devices never overlap.
        for (_, pool) in self.pools() {
            match pool.caching_allocator_record_stream(address, stream) {
                Err(FreeError::UnknownAddress { .. }) => {}
                result => return result,
            }
        }
        Err(FreeError::UnknownAddress { address })
    }

    /// Releases the cached segments of every device. If a device fails, continues with the others
    /// and returns the first error.
    pub(crate) fn empty_cache(&self) -> Result<(), String> {
        let mut result = Ok(());
        for (number, pool) in self.pools() {
            // Continues after an error, and returns the first error.
            if let Err(error) = pool.empty_cache() {
                result = result.and(Err(format!("device {number}: {error}")));
            }
        }
        result
    }

    /// Limits a device's pool, existing or not, to `fraction` of the device's memory, from 0 to 1;
    /// any other fraction is an error.
    pub(crate) fn set_memory_fraction(&self, fraction: f64, device: i32) -> Result<(), String> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(format!("the memory fraction must be from 0 to 1, not {fraction}"));
        }
        let (_, slot) = self.listed_slot(device)?;
        let mut stored = slot.lock_fraction();
        *stored = Some(fraction);
        slot.existing_pool()
            .map_or(Ok(()), |pool| pool.set_per_process_memory_fraction(fraction).map_err(|error| error.to_string()))
    }

    /// Serves the device's requests on all streams from a private pool from now on.
    pub(crate) fn begin_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.begin_allocate_to_pool(mempool, CaptureFilter::AllStreams).map_err(|error| error.to_string())
    }

    /// Stops serving the device's requests from the private pool `mempool`. Fails if they were not
    /// served from it.
    pub(crate) fn end_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.end_allocate_to_pool(mempool).map_err(|error| error.to_string())
    }

    /// Ends one use of a private pool; after the last one its segments can be released.
    pub(crate) fn release_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.release_pool(mempool).map_err(|error| error.to_string())
    }

    /// Returns the share of the device's memory, from 0 to 1, that its pool may reserve.
    pub(crate) fn memory_fraction(&self, device: i32) -> f64 {
        let stored = || self.slot(device).and_then(|slot| *slot.lock_fraction());
        let of_settings = || lock(&self.settings).per_process_memory_fraction;
        match self.existing_pool(device) {
            Some(pool) => pool.allocator_settings().per_process_memory_fraction,
            None => stored().unwrap_or_else(of_settings),
        }
    }

    /// Changes the settings of all pools, existing or not, to those in `conf`, which has the syntax
    /// of `PYTORCH_CUDA_ALLOC_CONF`. The memory limit of an existing pool stays as it is.
    pub(crate) fn set_settings(&self, conf: &str) -> Result<(), String> {
        let parsed = Settings::parse(conf).map_err(|error| error.to_string())?;
        let _creating = self.devices.lock_pool_creation();
        *lock(&self.settings) = parsed;
        for (_, pool) in self.pools() {
            pool.set_allocator_settings(conf).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Returns the size in bytes of the device's largest free block, or `guess` if that is larger.
    /// If `guess` is 0, the device's free memory is used instead of `guess`.
    pub(crate) fn cache_info(&self, device: i32, guess: u64) -> u64 {
        let Some(pool) = self.existing_pool(device) else { return guess };
        let guess = if guess == 0 { pool.mem_get_info().free_bytes } else { guess };
        guess.max(pool.memory_state().free_space().largest)
    }

    /// Resets counters of a device; does nothing for an unused device.
    pub(crate) fn reset_stats(&self, device: i32, reset: StatsReset) {
        let Some(pool) = self.existing_pool(device) else { return };
        match reset {
            StatsReset::Peaks => pool.reset_peak_memory_stats(),
            StatsReset::Accumulated => pool.reset_accumulated_memory_stats(),
        }
    }

    /// Registers a function that is called at every out-of-memory on any device, before the request
    /// fails.
    pub(crate) fn attach_out_of_memory_observer(&self, observer: Observer) {
        let _creating = self.devices.lock_pool_creation();
        self.pools().for_each(|(_, pool)| attach(pool, &observer));
        lock(&self.observers).push(observer);
    }

    /// Returns the counters of `torch.cuda.memory_stats()` as a JSON object: zeros for an unused
    /// device, `{}` for a missing one and before the devices are listed.
    pub(crate) fn memory_stats_json(&self, device: i32) -> String {
        let Some(slot) = self.slot(device) else { return "{}".to_owned() };
        let stats = slot.existing_pool().map_or_else(MemoryStats::default, DevicePool::memory_stats);
        serde_json::to_string(&stats).expect("a map of integers always serializes")
    }

    /// Records the mark `name`, or the beginning or end of the span `name`, on every device that
    /// has a pool. Without a recording it does nothing, except that a span that is open when the
    /// first pool starts the recording is recorded from there on.
    pub(crate) fn mark(&self, name: &str, stage: AnnotationStage) {
        let mut session = lock(&self.session);
        match session.handle() {
            Some(mut handle) => {
                drop(session);
                self.pools().for_each(|(number, _)| record_mark(&mut handle, DeviceId(number), stage, name));
            }
            None => session.mark_early(name, stage),
        }
    }

    /// Pauses (`enabled` is false) or resumes (true) the recording of the devices that have a pool.
    pub(crate) fn set_recording(&self, enabled: bool) {
        self.pools().for_each(|(_, pool)| pool.set_recording(enabled));
    }

    /// Starts a recording with these options, whose newest part is also kept in memory. If pools
    /// exist, it begins with their current state. Does nothing if a recording is in progress. Fails
    /// if a page was requested and cannot be served.
    pub(crate) fn start_session(&self, options: RecordingOptions) -> Result<SessionStart, String> {
        // Keeps other threads from creating a pool meanwhile.
        let _creating = self.devices.lock_pool_creation();
        let settings = lock(&self.settings).clone();
        let mut session = lock(&self.session);
        if session.is_active() {
            return Ok(SessionStart::InProgress(session.url()));
        }
        // Not logged: the caller receives the page's address, or the reason why no page is served.
        let collected = Arc::new(Mutex::new(Vec::new()));
        let messages = Arc::clone(&collected);
        let collect: Log = Arc::new(move |message| lock(&messages).push(message.to_owned()));
        let wants_page = options.listen.is_some();
        let opened = Session::open(options, true, &collect);
        let messages = std::mem::take(&mut *lock(&collected));
        if wants_page && opened.url().is_none() {
            return Err(messages.last().cloned().unwrap_or_default());
        }
        // Other messages are logged for the user: that another port is used, and who can reach the
        // page.
        messages.iter().filter(|message| !message.starts_with("listening: ")).for_each(|message| (self.log)(message));
        *session = opened;
        let mut pools = self.pools().peekable();
        if let Some(&(first, _)) = pools.peek() {
            session.start(|| self.recording_info(&settings), DeviceId(first), &self.log);
        }
        if let Some(handle) = session.handle() {
            pools.for_each(|(_, pool)| pool.record_by_scope(&handle));
        }
        Ok(SessionStart::Started(session.url()))
    }

    /// Writes the newest part of the recording, up to now, to the file at `path`.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let history = lock(&self.session).history();
        let (recording, hub) = history.ok_or("nothing is recorded in memory yet")?;
        recording.save(&hub, path).map(drop).map_err(|error| error.to_string())
    }

    /// Ends the recording; the pools continue to work. Returns true if its file is complete or none
    /// was requested, else false.
    pub(crate) fn stop(&self) -> bool {
        lock(&self.session).stop()
    }

    /// Ends the recording, then the page's server once its viewers have received the rest of the
    /// recording. Another session can be started then. Returns what [`stop`](Self::stop) returns.
    pub(crate) fn shut_down(&self) -> bool {
        lock(&self.session).close()
    }
}

#[cfg(test)]
mod listing_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
