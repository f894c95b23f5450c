//! What a process has of vramscope: settings, a pool for each GPU that it uses, one recording of them all, and the live page.
//!
//! It is generic over where devices come from, so that all of it is tested on this machine's memory.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vramscope_collector::{
    AllocateError, Content, Controls, DevicePool, FreeError, Hub, MemoryDevice, Server, ServerOptions, Settings,
};
use vramscope_pool::Diverted;
use vramscope_trace::{DeviceId, DeviceInfo, MempoolId, Null, StreamId};

use crate::console::Tell;
use crate::environment::Wanted;
use crate::recording::Recording;

/// Where devices come from.
pub(crate) trait Devices: Send + Sync + 'static {
    /// What a pool is over.
    type Device: MemoryDevice;

    /// Every device that there is, in the order of their numbers from 0. Opens none.
    fn list(&self) -> Result<Vec<DeviceInfo>, String>;

    /// Opens a device, by its number.
    fn open(&self, number: u16) -> Result<Self::Device, String>;
}

/// Why no memory was handed out.
#[derive(Debug, PartialEq)]
pub(crate) enum Refused {
    /// There is no pool, for this reason.
    NoPool(String),
    /// The pool said no.
    ByPool(AllocateError),
}

impl fmt::Display for Refused {
    /// Names who refuses, but for out of memory: that begins as PyTorch's own message does, for programs that look for its beginning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPool(reason) => write!(f, "vramscope: {reason}; no memory is handed out"),
            Self::ByPool(error @ (AllocateError::OutOfMemory(_) | AllocateError::TooLarge { .. })) => {
                write!(f, "CUDA {error}")
            }
            Self::ByPool(error) => write!(f, "vramscope: {error}"),
        }
    }
}

/// One device as the process knows it.
struct Place<D: MemoryDevice> {
    /// The share of the device's memory that the pool may hold, where that was set before there was a pool.
    fraction: Mutex<Option<f64>>,
    /// The pool, from the first use on, or why it could not be made.
    pool: OnceLock<Result<DevicePool<D>, String>>,
}

impl<D: MemoryDevice> Place<D> {
    /// The pool, if there is one yet.
    fn made(&self) -> Option<&DevicePool<D>> {
        self.pool.get()?.as_ref().ok()
    }
}

/// All of it. Nothing here is ever taken down but the recording and the server: PyTorch frees memory until the process is gone.
pub(crate) struct Process<S: Devices> {
    source: S,
    tell: Tell,
    settings: Settings,
    devices: Vec<DeviceInfo>,
    /// By number; none where there are no devices or no settings.
    places: Vec<Place<S::Device>>,
    /// Why there are none, where that has a reason.
    absent: String,
    wanted: Wanted,
    hub: Option<Hub>,
    /// What may be asked for at the page.
    controls: Controls,
    server: Mutex<Option<Server>>,
    /// From the first pool on, since it says first what that pool's settings are.
    recording: OnceLock<Option<Recording>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these guard is set whole or not at all.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Devices> Process<S> {
    /// Begins: looks for devices and, where that is wanted, serves the page.
    pub(crate) fn new(source: S, settings: Result<Settings, String>, wanted: Wanted, tell: Tell) -> Self {
        // Without settings nothing is handed out: memory under others than were asked for would be a quiet mistake.
        let found = settings.and_then(|settings| source.list().map(|devices| (settings, devices)));
        let (settings, devices, absent) = match found {
            Ok((settings, devices)) => (settings, devices, String::new()),
            Err(reason) => (Settings::default(), Vec::new(), reason),
        };
        let place = |_: &DeviceInfo| Place { fraction: Mutex::new(None), pool: OnceLock::new() };
        let places = devices.iter().map(place).collect();
        let controls = Controls::default();
        let (hub, server) = (wanted.listen.filter(|_| absent.is_empty()))
            .map(|address| serve(address, &wanted, &controls, &tell))
            .unzip();
        Self {
            source,
            settings,
            devices,
            places,
            absent,
            // What is pushed is seen from there, too.
            hub: hub.flatten().or_else(|| wanted.push.is_some().then(Hub::default)),
            wanted,
            controls,
            server: Mutex::new(server.flatten()),
            recording: OnceLock::new(),
            tell,
        }
    }

    fn place(&self, device: i32) -> Option<(u16, &Place<S::Device>)> {
        let number = u16::try_from(device).ok()?;
        self.places.get(usize::from(number)).map(|place| (number, place))
    }

    /// The pool of a device, made now where there is none yet, or why there is none.
    #[inline]
    fn pool(&self, device: i32) -> Result<&DevicePool<S::Device>, String> {
        let (number, place) = self.place(device).ok_or_else(|| self.absence(device))?;
        place.pool.get().unwrap_or_else(|| self.make(number, place)).as_ref().map_err(String::clone)
    }

    #[cold]
    fn absence(&self, device: i32) -> String {
        match self.absent.as_str() {
            "" => format!("there is no device {device}: there are {}", self.devices.len()),
            reason => reason.to_owned(),
        }
    }

    #[cold]
    fn make<'a>(&self, number: u16, place: &'a Place<S::Device>) -> &'a Result<DevicePool<S::Device>, String> {
        // Held until the pool is there, so that a fraction that is set meanwhile is not lost.
        let fraction = lock(&place.fraction);
        place.pool.get_or_init(|| self.open(number, *fraction))
    }

    fn open(&self, number: u16, fraction: Option<f64>) -> Result<DevicePool<S::Device>, String> {
        let device = self.source.open(number).map_err(|reason| format!("device {number}: {reason}"))?;
        let mut settings = self.settings.clone();
        if let Some(fraction) = fraction {
            settings.per_process_memory_fraction = fraction;
        }
        let recording = self.recording.get_or_init(|| {
            let hub = self.hub.as_ref();
            let recording = Recording::begin(&self.wanted, hub, settings.to_conf(), self.devices.clone(), &self.tell);
            if let (Some(recording), Some(hub)) = (&recording, hub) {
                self.controls.offer_recording(hub, &recording.handle(), DeviceId(number), PathBuf::new());
            }
            recording
        });
        Ok(match recording {
            Some(recording) => {
                // PyTorch does not tell an allocator where in the program a request came from; the program may, by scopes.
                DevicePool::recorded_by_scope(device, settings, &recording.handle())
            }
            // Nobody asks when it was.
            None => DevicePool::new(device, settings, Null, || 0),
        })
    }

    /// The pools that there are, with the numbers of their devices.
    fn pools(&self) -> impl Iterator<Item = (u16, &DevicePool<S::Device>)> {
        (0..).zip(self.places.iter().map(Place::made)).filter_map(|(number, pool)| Some((number, pool?)))
    }

    /// The address of `bytes` of memory; `None` where no byte was asked for.
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64, device: i32, stream: StreamId) -> Result<Option<u64>, Refused> {
        let pool = self.pool(device).map_err(Refused::NoPool)?;
        pool.caching_allocator_alloc(bytes, stream).map_err(Refused::ByPool)
    }

    /// Takes back what [`allocate`](Self::allocate) handed out for that device.
    #[inline]
    pub(crate) fn free(&self, address: u64, device: i32) -> Result<(), FreeError> {
        let pool = self.place(device).and_then(|(_, place)| place.made());
        // SAFETY: These pools make no slices, and whoever calls the library's free is done with the memory.
        unsafe { pool.ok_or(FreeError::Foreign { address })?.caching_allocator_delete(address) }
    }

    /// Says that work on `stream` uses a block, so that it is not handed out again before that is done.
    pub(crate) fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        // PyTorch does not say of which device it is; addresses of several never overlap.
        for (_, pool) in self.pools() {
            match pool.caching_allocator_record_stream(address, stream) {
                Err(FreeError::Foreign { .. }) => {}
                known => return known,
            }
        }
        Err(FreeError::Foreign { address })
    }

    /// Gives what no block is live in back, on every device.
    pub(crate) fn empty_cache(&self) -> Result<(), String> {
        let mut all = Ok(());
        for (number, pool) in self.pools() {
            // Every pool, also after one that failed.
            if let Err(error) = pool.empty_cache() {
                all = all.and(Err(format!("device {number}: {error}")));
            }
        }
        all
    }

    /// Limits what a device's pool may hold to a share of the device's memory, from 0 to 1.
    pub(crate) fn set_memory_fraction(&self, fraction: f64, device: i32) -> Result<(), String> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(format!("{fraction} is no share of the device's memory: it must lie from 0 to 1"));
        }
        let (_, place) = self.place(device).ok_or_else(|| format!("there is no device {device}"))?;
        let mut kept = lock(&place.fraction);
        *kept = Some(fraction);
        place
            .made()
            .map_or(Ok(()), |pool| pool.set_per_process_memory_fraction(fraction).map_err(|error| error.to_string()))
    }

    /// From now on what is asked for on a device is served from a private pool.
    pub(crate) fn begin_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.begin_allocate_to_pool(mempool, Diverted::Everything).map_err(|error| error.to_string())
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began.
    pub(crate) fn end_allocate_to_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.end_allocate_to_pool(mempool).map_err(|error| error.to_string())
    }

    /// One use less of a private pool.
    pub(crate) fn release_pool(&self, device: i32, mempool: MempoolId) -> Result<(), String> {
        self.pool(device)?.release_pool(mempool).map_err(|error| error.to_string())
    }

    /// What `torch.cuda.memory_stats()` says, as a JSON object; `{}` for a device that was not used.
    pub(crate) fn memory_stats_json(&self, device: i32) -> String {
        let pool = self.place(device).and_then(|(_, place)| place.made());
        let stats = pool.map(|pool| serde_json::to_string(&pool.memory_stats()));
        stats.map_or_else(|| "{}".to_owned(), |text| text.expect("a table of integers is JSON"))
    }

    /// Records a named moment, on every device that is used.
    pub(crate) fn mark(&self, name: &str) {
        if let Some(Some(recording)) = self.recording.get() {
            recording.mark(name, self.pools().map(|(number, _)| DeviceId(number)));
        }
    }

    /// Whether what happens is recorded, on the devices that are used so far.
    pub(crate) fn set_recording(&self, recording: bool) {
        self.pools().for_each(|(_, pool)| pool.set_recording(recording));
    }

    /// Ends the recording; says whether its file is whole. Memory is handed out and taken back as before.
    pub(crate) fn stop(&self) -> bool {
        match self.recording.get() {
            Some(Some(recording)) => recording.end(),
            // Where a file was wanted and none could be written, there is none.
            Some(None) => self.wanted.record.is_none(),
            None => true,
        }
    }

    /// The process is exiting: ends the recording, and the server once its viewers have the rest.
    pub(crate) fn exit(&self) {
        self.stop();
        drop(lock(&self.server).take());
    }
}

/// Serves the page, and says where.
fn serve(address: SocketAddr, wanted: &Wanted, controls: &Controls, tell: &Tell) -> (Option<Hub>, Option<Server>) {
    let hub = Hub::default();
    let Wanted { token, allow_hosts, tls, .. } = wanted;
    let (token, allow_hosts, tls) = (token.clone(), allow_hosts.clone(), tls.clone());
    let options = ServerOptions { listen: Some(address), token, allow_hosts, tls, ..ServerOptions::default() };
    let content = Content { controls: Some(controls.clone()), ..Content::live(hub.clone()) };
    match Server::start(options, content) {
        Ok(server) => {
            tell(&format!("listening: {}", server.url()));
            if wanted.token.is_none() && !wanted.allow_hosts.is_empty() && server.address().ip().is_loopback() {
                tell("whoever comes through a proxy may watch; VRAMSCOPE_TOKEN wants a token of everyone");
            }
            (Some(hub), Some(server))
        }
        Err(error) => {
            tell(&format!("{error}; there is no live page"));
            (None, None)
        }
    }
}

#[cfg(test)]
mod tests;
