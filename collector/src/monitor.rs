//! Recording a program: pool, recorder, file, live page and push, set up together.

use std::io;
#[cfg(feature = "server")]
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use vramscope_pool::{OutOfMemory, Settings};
#[cfg(feature = "server")]
use vramscope_trace::DeviceId;
use vramscope_trace::{DeviceInfo, RecordingInfo};

#[cfg(feature = "server")]
use crate::controls::Controls;
use crate::env::{EnvError, redact_from_env, settings_from_env};
use crate::file::{FileError, Keep, RecordingFile};
use crate::hub::Hub;
use crate::memory::MemoryDevice;
use crate::observer;
use crate::pool::DevicePool;
#[cfg(feature = "push")]
use crate::process::Rank;
#[cfg(feature = "push")]
use crate::push::{Push, PushAddress, push_from_env};
use crate::recorder::{Outputs, Overflow, Recorder, RecorderHandle, Summary};
#[cfg(feature = "server")]
use crate::server::{ServedContent, Server, ServerOptions, StartError, TlsFiles, Token};

/// Where a monitor serves the live page: on loopback, at another address, or nowhere.
#[cfg(feature = "server")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// On the loopback address at [`DEFAULT_PORT`](crate::DEFAULT_PORT), or the next free port.
    #[default]
    Loopback,
    /// At this address, or the next free port after it. An address that other machines can reach
    /// requires a token.
    Address(SocketAddr),
    /// Not at all.
    Off,
}

#[cfg(feature = "server")]
impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// Options of a [`Monitor`] and its pool, from [`Monitor::builder`].
///
/// By default the pool has PyTorch's default settings, the page is served on the loopback address
/// and nothing is written to a file. [`from_env`](Self::from_env) reads settings from environment
/// variables; no other method does.
#[derive(Debug)]
#[must_use = "nothing happens until `start` is called"]
pub struct MonitorBuilder<D> {
    device: D,
    devices: Vec<DeviceInfo>,
    program: String,
    settings: Settings,
    record: Option<PathBuf>,
    keep: Keep,
    overflow: Option<Overflow>,
    redact: bool,
    #[cfg(feature = "server")]
    listen: Listen,
    #[cfg(feature = "server")]
    server: ServerOptions,
    #[cfg(feature = "server")]
    folder: PathBuf,
    #[cfg(feature = "push")]
    push: Option<PushAddress>,
    #[cfg(feature = "push")]
    rank: Rank,
}

impl<D: MemoryDevice> MonitorBuilder<D> {
    fn new(device: D) -> Self {
        Self {
            devices: vec![device.info()],
            device,
            program: String::new(),
            settings: Settings::default(),
            record: None,
            keep: Keep::default(),
            overflow: None,
            redact: false,
            #[cfg(feature = "server")]
            listen: Listen::default(),
            #[cfg(feature = "server")]
            server: ServerOptions::default(),
            #[cfg(feature = "server")]
            folder: PathBuf::new(),
            #[cfg(feature = "push")]
            push: None,
            #[cfg(feature = "push")]
            rank: Rank::default(),
        }
    }

    /// Creates a builder for `device` with the options that environment variables set: the
    /// allocator's settings as for PyTorch (`PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`), the
    /// server to push to (`VRAMSCOPE_PUSH`), whether names are recorded (`VRAMSCOPE_REDACT`), and
    /// the rank that a launcher assigned to this process.
    ///
    /// # Errors
    /// If a variable's value is invalid.
    pub fn from_env(device: D) -> Result<Self, EnvError> {
        let builder = Self::new(device).settings(settings_from_env()?).redact(redact_from_env());
        #[cfg(feature = "push")]
        let builder = Self { push: push_from_env()?, rank: Rank::from_env(), ..builder };
        Ok(builder)
    }

    /// Sets the program's name, which viewers show.
    pub fn program(self, name: impl Into<String>) -> Self {
        Self { program: name.into(), ..self }
    }

    /// Records placeholders such as `function_12` instead of the names of functions, files, scopes,
    /// marks and the program. The default is false.
    pub fn redact(self, redact: bool) -> Self {
        Self { redact, ..self }
    }

    /// Sets the allocator's settings for all pools of this monitor. The default is PyTorch's
    /// defaults.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Announces another device that will be recorded, so that viewers know its name and size. Its
    /// pool comes from [`Monitor::pool`].
    pub fn with_device(mut self, device: &impl MemoryDevice) -> Self {
        self.devices.push(device.info());
        self
    }

    /// Writes the recording to the file at `path`, replacing an earlier one. The file is a valid
    /// recording at every moment, even if the process is killed.
    pub fn record(self, path: impl Into<PathBuf>) -> Self {
        Self { record: Some(path.into()), ..self }
    }

    /// Limits the file set by [`record`](Self::record) to the newest part of the recording. By
    /// default the file keeps everything.
    pub fn keep(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Sets what happens when the program produces events faster than the recorder takes them from
    /// the queues.
    ///
    /// By default the program waits if the recording goes to a file, so that the file has every
    /// event. Without a file, events are dropped and counted.
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow: Some(overflow), ..self }
    }

    /// Sets where the live page is served: a [`SocketAddr`] or a [`Listen`]. The default is
    /// loopback.
    #[cfg(feature = "server")]
    pub fn listen(self, listen: impl Into<Listen>) -> Self {
        Self { listen: listen.into(), ..self }
    }

    /// Sets the secret that clients of the page must send; see [`ServerOptions::token`].
    #[cfg(feature = "server")]
    pub fn token(mut self, token: Token) -> Self {
        self.server.token = Some(token);
        self
    }

    /// Accepts requests for another host name, for example the name of a proxy in front of the
    /// page. Call it once for each name.
    #[cfg(feature = "server")]
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.server.allow_hosts.push(name.into());
        self
    }

    /// Serves the page over HTTPS with this certificate. Without the feature `tls`,
    /// [`start`](Self::start) then fails.
    #[cfg(feature = "server")]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.server.tls = Some(files);
        self
    }

    /// Sets the folder for recordings that a viewer starts on the page. By default it is the
    /// current directory.
    #[cfg(feature = "server")]
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), ..self }
    }

    /// Also sends the recording to the server at this address, such as a `vramscope serve`, which
    /// merges the recordings of several processes.
    #[cfg(feature = "push")]
    pub fn push(self, address: impl Into<PushAddress>) -> Self {
        Self { push: Some(address.into()), ..self }
    }

    /// Sets the number of this process in a distributed run, which `vramscope serve` shows.
    #[cfg(feature = "push")]
    pub fn rank(self, rank: Rank) -> Self {
        Self { rank, ..self }
    }

    /// Starts recording and serving. Returns the monitor and a recorded pool over the builder's
    /// device.
    ///
    /// # Errors
    /// If the page cannot be served, the file cannot be created, or no thread can be started.
    /// An unreachable server to push to is not an error: the process keeps trying to connect.
    pub fn start(self) -> Result<(Monitor, DevicePool<D>), MonitorError> {
        let hub = Hub::default();
        // The server comes before the file: a mistake in its options must not cost an earlier
        // recording.
        #[cfg(feature = "server")]
        let (controls, server) = {
            let controls = Controls::default();
            let content = ServedContent { controls: Some(controls.clone()), ..ServedContent::live(hub.clone()) };
            let start = |listen| Server::start(ServerOptions { listen, ..self.server }, content).map(Some);
            let server = match self.listen {
                Listen::Loopback => start(None)?,
                Listen::Address(address) => start(Some(address))?,
                Listen::Off => None,
            };
            (controls, server)
        };
        let overflow = self.overflow.unwrap_or(if self.record.is_some() { Overflow::Wait } else { Overflow::Drop });
        let redact = self.redact;
        let mut outputs = Outputs { hub: Some(hub.clone()), overflow, redact, ..Outputs::default() };
        if let Some(path) = &self.record {
            outputs.file = Some(RecordingFile::create(path, self.keep)?);
            // A file's error is logged at once: the program may run for hours before its summary
            // reports the error.
            outputs.on_file_error =
                Some(Box::new(|error| tracing::error!("{error}; the file ends here, the program continues")));
        }
        let info = RecordingInfo {
            source: self.program.clone(),
            writer: concat!("vramscope-collector ", env!("CARGO_PKG_VERSION")).to_owned(),
            alloc_conf: self.settings.to_conf(),
            devices: self.devices,
            ..RecordingInfo::default()
        };
        #[cfg(feature = "server")]
        let first_device = DeviceId(info.devices[0].device);
        let (recorder, handle) = Recorder::start(info, outputs).map_err(MonitorError::Thread)?;
        #[cfg(feature = "server")]
        controls.offer_recording(&hub, &handle, first_device, self.folder);
        #[cfg(feature = "push")]
        let push = self.push.and_then(|address| start_push(address, &self.program, self.rank, &hub));
        let monitor = Monitor {
            recorder,
            handle,
            hub,
            settings: self.settings,
            #[cfg(feature = "push")]
            push,
            #[cfg(feature = "server")]
            controls,
            #[cfg(feature = "server")]
            server,
        };
        let pool = monitor.pool(self.device);
        Ok((monitor, pool))
    }
}

/// Starts to push the hub's recording to the server at `address`. If no thread can be started, logs
/// the error and returns `None`; the program continues.
#[cfg(feature = "push")]
fn start_push(address: PushAddress, program: &str, rank: Rank, hub: &Hub) -> Option<Push> {
    Push::start(address, program, rank, hub)
        .map_err(|error| tracing::warn!("cannot push the recording: no thread could be started: {error}"))
        .ok()
}

/// A program that is being recorded: owns the recorder, its file, the server of the live page and
/// the connection that pushes the recording to `vramscope serve`.
///
/// Dropping it ends the recording and stops the server. The program's pools keep working.
///
/// ```
/// # #[cfg(feature = "server")]
/// use vramscope_collector::Listen;
/// use vramscope_collector::{HostDevice, Monitor};
///
/// let folder = tempfile::tempdir()?;
/// # #[cfg(feature = "server")]
/// let builder = Monitor::builder(HostDevice::new(64 << 20)).listen(Listen::Off);
/// # #[cfg(not(feature = "server"))]
/// # let builder = Monitor::builder(HostDevice::new(64 << 20));
/// let (monitor, pool) = builder.program("train").record(folder.path().join("run.vram")).start()?;
/// let activations = pool.alloc_zeros::<f32>(1024)?;
/// drop(activations);
/// let summary = monitor.stop();
/// assert!(summary.events > 0 && summary.file_error.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Monitor {
    recorder: Recorder,
    handle: RecorderHandle,
    hub: Hub,
    settings: Settings,
    #[cfg(feature = "server")]
    controls: Controls,
    /// Dropped after the recorder, so that the rest of the recording is sent.
    #[cfg(feature = "push")]
    push: Option<Push>,
    #[cfg(feature = "server")]
    server: Option<Server>,
}

impl Monitor {
    /// Returns a builder for a monitor and a pool over `device`, with default options.
    pub fn builder<D: MemoryDevice>(device: D) -> MonitorBuilder<D> {
        MonitorBuilder::new(device)
    }

    /// Creates a recorded pool over another device, with the builder's settings.
    ///
    /// The device must have a different number from all others and should have been announced with
    /// [`MonitorBuilder::with_device`]; viewers otherwise know only its number.
    pub fn pool<D: MemoryDevice>(&self, device: D) -> DevicePool<D> {
        DevicePool::recorded(device, self.settings.clone(), &self.handle)
    }

    /// Returns the recorder's handle, for events that do not come from a pool of this monitor.
    #[must_use]
    pub fn recorder(&self) -> &RecorderHandle {
        &self.handle
    }

    /// Returns the hub that holds the newest part of the recording.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Offers a command on the page with which viewers who have the token release the cached
    /// segments of `pool`.
    #[cfg(feature = "server")]
    pub fn allow_empty_cache<D: MemoryDevice>(&self, pool: &DevicePool<D>) {
        self.controls.offer_empty_cache_of(pool);
    }

    /// Returns the page's address with its token, or `None` if no page is served. Anyone who has
    /// this address may use the page's controls.
    #[cfg(feature = "server")]
    #[must_use]
    pub fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// Returns an observer that writes the recording to `path` at the first out-of-memory and
    /// passes the result to `on_written`; see
    /// [`recording_at_out_of_memory`](crate::recording_at_out_of_memory).
    pub fn recording_at_out_of_memory(
        &self,
        path: impl Into<PathBuf>,
        on_written: impl Fn(io::Result<&Path>) + Send + Sync + 'static,
    ) -> impl Fn(&OutOfMemory) + Send + Sync + 'static {
        observer::recording_at_out_of_memory(self.hub.clone(), self.handle.clone(), path, on_written)
    }

    /// Ends the recording and stops the server. Returns the numbers of recorded and dropped events,
    /// the recording's size, and the error that ended its file early, if any.
    pub fn stop(self) -> Summary {
        let summary = self.recorder.stop();
        #[cfg(feature = "push")]
        drop(self.push);
        #[cfg(feature = "server")]
        drop(self.server);
        summary
    }
}

/// Why a [`Monitor`] could not start: it cannot serve the page, create the recording's file or
/// start the recorder's thread.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The page cannot be served.
    #[cfg(feature = "server")]
    #[error("{0}")]
    Listen(#[from] StartError),
    /// The recording's file cannot be created.
    #[error("{0}")]
    Record(#[from] FileError),
    /// The recorder's thread cannot be started.
    #[error("cannot start the recorder's thread: {0}")]
    Thread(#[source] io::Error),
}
