//! The library's state in a process: settings, a pool for each GPU in use, one recording, and the
//! page.
//!
//! It is generic over the source of devices, so that tests can use host memory.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vramscope_collector::session::{Log, ProcessRecording, RecordingOptions, serve};
use vramscope_collector::{AllocateError, Controls, DevicePool, FreeError, Hub, MemoryDevice, Server, Settings};
use vramscope_pool::CaptureFilter;
use vramscope_trace::{Count, DeviceId, DeviceInfo, MempoolId, NullSink, StreamId};

/// The name that the headers of recordings give for this library.
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

/// A device's pool, if it has been created, and the memory fraction to create it with.
struct DeviceSlot<D: MemoryDevice> {
    /// The share of the device's memory that the pool may reserve, if it was set.
    fraction: Mutex<Option<f64>>,
    /// The pool, from the first use on, or why it could not be created.
    pool: OnceLock<Result<DevicePool<D>, String>>,
}

impl<D: MemoryDevice> DeviceSlot<D> {
    /// Returns the device's pool; `None` if the device was not used yet or its pool could not be
    /// created.
    fn existing_pool(&self) -> Option<&DevicePool<D>> {
        self.pool.get()?.as_ref().ok()
    }
}

/// The library's state in a process: the pools of all devices, the recording, and the page's
/// server. At exit only the recording and the server end: PyTorch frees memory until the process
/// ends.
pub(crate) struct ProcessState<S: DeviceSource> {
    source: S,
    log: Log,
    settings: Settings,
    device_infos: Vec<DeviceInfo>,
    /// One for each device, by number; empty after a failure.
    slots: Vec<DeviceSlot<S::Device>>,
    /// Why there are no devices or no valid settings; empty if there are.
    failure: String,
    options: RecordingOptions,
    hub: Option<Hub>,
    /// What the page may ask of the process.
    controls: Controls,
    server: Mutex<Option<Server>>,
    /// Started with the first pool, whose settings are in the recording's header. `None` if nothing
    /// is recorded.
    recording: OnceLock<Option<ProcessRecording>>,
}

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded values are replaced as a whole, so a panic leaves none half set.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: DeviceSource> ProcessState<S> {
    /// Lists the devices and, if requested, serves the page.
    pub(crate) fn new(source: S, settings: Result<Settings, String>, options: RecordingOptions, log: Log) -> Self {
        // With invalid settings every request fails: other settings would change results silently.
        let found = settings.and_then(|settings| source.list().map(|devices| (settings, devices)));
        let (settings, device_infos, failure) = match found {
            Ok((settings, devices)) => (settings, devices, String::new()),
            Err(reason) => (Settings::default(), Vec::new(), reason),
        };
        let slot = |_: &DeviceInfo| DeviceSlot { fraction: Mutex::new(None), pool: OnceLock::new() };
        let slots = device_infos.iter().map(slot).collect();
        let controls = Controls::default();
        let (hub, server) = (options.listen.filter(|_| failure.is_empty()))
            .map(|address| serve(address, &options, &controls, &log))
            .unzip();
        Self {
            source,
            settings,
            device_infos,
            slots,
            failure,
            // A push reads from a hub, too.
            hub: hub.flatten().or_else(|| options.push.is_some().then(Hub::default)),
            options,
            controls,
            server: Mutex::new(server.flatten()),
            recording: OnceLock::new(),
            log,
        }
    }

    /// Returns the number and the slot (pool and memory fraction) of a device; `None` if this
    /// process sees no device with this number.
    fn slot(&self, device: i32) -> Option<(u16, &DeviceSlot<S::Device>)> {
        let number = u16::try_from(device).ok()?;
        self.slots.get(usize::from(number)).map(|slot| (number, slot))
    }

    /// Returns the device's pool, which the first call creates. Fails with the reason why the
    /// device has no pool.
    #[inline]
    fn pool(&self, device: i32) -> Result<&DevicePool<S::Device>, String> {
        let (number, slot) = self.slot(device).ok_or_else(|| self.missing_device(device))?;
        slot.pool.get().unwrap_or_else(|| self.create_pool(number, slot)).as_ref().map_err(String::clone)
    }

    /// Returns in words why a device cannot be used: it does not exist, or no device can be used
    /// for the reason given.
    #[cold]
    fn missing_device(&self, device: i32) -> String {
        match self.failure.as_str() {
            "" => {
                let devices = Count(self.device_infos.len() as u64).of("device", "devices");
                format!("there is no device {device}: this process sees {devices}")
            }
            reason => reason.to_owned(),
        }
    }

    /// Creates the device's pool, unless another thread just did, and returns it or the reason why
    /// it cannot be created.
    #[cold]
    fn create_pool<'a>(
        &self,
        number: u16,
        slot: &'a DeviceSlot<S::Device>,
    ) -> &'a Result<DevicePool<S::Device>, String> {
        // Locked until the pool exists, so that a fraction set meanwhile is not lost.
        let fraction = lock(&slot.fraction);
        slot.pool.get_or_init(|| self.open(number, *fraction))
    }

    /// Opens a device and creates its pool; the first call also starts the recording. `fraction` is
    /// the share of the device's memory, from 0 to 1, that the pool may reserve; `None` for the
    /// share in the settings.
    fn open(&self, number: u16, fraction: Option<f64>) -> Result<DevicePool<S::Device>, String> {
        let device = self.source.open(number).map_err(|reason| format!("device {number}: {reason}"))?;
        let mut settings = self.settings.clone();
        if let Some(fraction) = fraction {
            settings.per_process_memory_fraction = fraction;
        }
        let recording = self.recording.get_or_init(|| {
            let hub = self.hub.as_ref();
            let recording = ProcessRecording::start(
                &self.options,
                WRITER,
                hub,
                settings.to_conf(),
                self.device_infos.clone(),
                &self.log,
            );
            if let (Some(recording), Some(hub)) = (&recording, hub) {
                self.controls.offer_recording(hub, &recording.handle(), DeviceId(number), PathBuf::new());
            }
            recording
        });
        Ok(match recording {
            Some(recording) => {
                // PyTorch passes no call stack to an allocator; the program may enter scopes.
                DevicePool::recorded_by_scope(device, settings, &recording.handle())
            }
            // Without a recording no time is used.
            None => DevicePool::new(device, settings, NullSink, || 0),
        })
    }

    /// Iterates over the pools created so far, with the numbers of their devices.
    fn pools(&self) -> impl Iterator<Item = (u16, &DevicePool<S::Device>)> {
        (0..).zip(self.slots.iter().map(DeviceSlot::existing_pool)).filter_map(|(number, pool)| Some((number, pool?)))
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
        let pool = self.slot(device).and_then(|(_, slot)| slot.existing_pool());
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
            // Continues after an error, and returns the first.
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
        let (_, slot) = self.slot(device).ok_or_else(|| self.missing_device(device))?;
        let mut stored = lock(&slot.fraction);
        *stored = Some(fraction);
        slot.existing_pool()
            .map_or(Ok(()), |pool| pool.set_per_process_memory_fraction(fraction).map_err(|error| error.to_string()))
    }

    /// Serves the device's requests on all streams from a private pool from now on.
    pub(crate) fn begin_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.begin_allocate_to_pool(mempool, CaptureFilter::AllStreams).map_err(|error| error.to_string())
    }

    /// Stops serving the device's requests from the private pool `mempool`; it is an error if they
    /// are not.
    pub(crate) fn end_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.end_allocate_to_pool(mempool).map_err(|error| error.to_string())
    }

    /// Ends one use of a private pool; after the last one its segments can be released.
    pub(crate) fn release_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.release_pool(mempool).map_err(|error| error.to_string())
    }

    /// Returns the counters of `torch.cuda.memory_stats()` as a JSON object; `{}` for an unused
    /// device.
    pub(crate) fn memory_stats_json(&self, device: i32) -> String {
        let pool = self.slot(device).and_then(|(_, slot)| slot.existing_pool());
        let stats = pool.map(|pool| serde_json::to_string(&pool.memory_stats()));
        stats.map_or_else(|| "{}".to_owned(), |text| text.expect("a map of integers always serializes"))
    }

    /// Records the mark `name` on every device that has a pool; does nothing without a recording.
    pub(crate) fn mark(&self, name: &str) {
        if let Some(Some(recording)) = self.recording.get() {
            recording.mark(name, self.pools().map(|(number, _)| DeviceId(number)));
        }
    }

    /// Pauses (`enabled` is false) or resumes (true) the recording of the devices that have a pool.
    pub(crate) fn set_recording(&self, enabled: bool) {
        self.pools().for_each(|(_, pool)| pool.set_recording(enabled));
    }

    /// Ends the recording; the pools continue to work. Returns true if its file is complete or none
    /// was requested, else false.
    pub(crate) fn stop(&self) -> bool {
        match self.recording.get() {
            Some(Some(recording)) => recording.stop(),
            // A requested file could not be created.
            Some(None) => self.options.record.is_none(),
            None => true,
        }
    }

    /// Ends the recording, then the page's server once its viewers have received the rest of the
    /// recording.
    pub(crate) fn shut_down(&self) {
        self.stop();
        drop(lock(&self.server).take());
    }
}

#[cfg(test)]
mod tests;
