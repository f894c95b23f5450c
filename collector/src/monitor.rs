//! Everything that watches a program, in one: the recorder, the hub, the page and a file.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use vramscope_pool::{OutOfMemory, Settings};
use vramscope_trace::{DeviceId, DeviceInfo, RecordingInfo};

use crate::controls::Controls;
use crate::file::{FileError, Keep, RecordingFile};
use crate::hub::Hub;
use crate::memory::MemoryDevice;
use crate::observer;
use crate::pool::DevicePool;
use crate::push::{Push, push_from_env};
use crate::recorder::{Outputs, Overflow, Recorder, RecorderHandle, Summary};
use crate::server::{Content, Server, ServerOptions, StartError, TlsFiles, Token};
use crate::socket::Address;

/// What is recorded, and where it can be seen.
#[derive(Clone, Debug, Default)]
pub struct MonitorOptions {
    /// The program's name, which viewers show.
    pub program: String,
    /// The settings that the pools have.
    pub settings: Settings,
    /// What is known of the devices, from [`MemoryDevice::info`].
    pub devices: Vec<DeviceInfo>,
    /// Where the page is served.
    pub listen: Listen,
    /// A file for the recording, which is written anew.
    pub record: Option<PathBuf>,
    /// How much of the recording the file keeps.
    pub keep: Keep,
    /// What is done when the program is faster than the recorder: where this says nothing it waits for a file, so that the file has every
    /// event, and for viewers alone it does not.
    pub overflow: Option<Overflow>,
    /// What whoever asks for the page must say; see [`ServerOptions::token`].
    pub token: Option<Token>,
    /// Other names under which browsers reach the page.
    pub allow_hosts: Vec<String>,
    /// The certificate to serve the page by HTTPS with.
    pub tls: Option<TlsFiles>,
    /// A hub to push the recording to; where this says nothing, the one that the environment names: see [`push_from_env`].
    pub push: Option<Address>,
    /// The folder for recordings that somebody at the page asks for; the program's own where it is empty.
    pub folder: PathBuf,
}

impl MonitorOptions {
    /// A program whose pool has these settings and is over this device, with its page at any port and no file.
    #[must_use]
    pub fn of(program: impl Into<String>, settings: &Settings, device: &impl MemoryDevice) -> Self {
        let (program, settings) = (program.into(), settings.clone());
        Self { program, settings, devices: vec![device.info()], ..Self::default() }
    }
}

/// Where the page is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// On this machine's [`DEFAULT_PORT`](crate::DEFAULT_PORT), or the next free port after it.
    #[default]
    AnyPort,
    /// At this address, or the next free port after it. Where other machines reach it, it takes a token.
    At(SocketAddr),
    /// Nowhere.
    Nowhere,
}

/// A program that is watched: a recording in progress, the page that shows it, and the file that it goes to. When this is dropped,
/// the recording ends and the page is gone; the program's pools work on.
#[derive(Debug)]
pub struct Monitor {
    recorder: Recorder,
    handle: RecorderHandle,
    hub: Hub,
    controls: Controls,
    /// Behind the recorder, so that what is left is sent when that has ended.
    push: Option<Push>,
    server: Option<Server>,
}

impl Monitor {
    /// Begins to record, and to serve the page.
    ///
    /// # Errors
    /// When the page cannot be served, the file not be made, or the operating system gives no thread.
    pub fn start(options: MonitorOptions) -> Result<Self, MonitorError> {
        let MonitorOptions {
            program,
            settings,
            devices,
            listen,
            record,
            keep,
            overflow,
            token,
            allow_hosts,
            tls,
            push,
            folder,
        } = options;
        let (hub, controls) = (Hub::default(), Controls::default());
        // Before the file, so that a mistake costs no earlier recording.
        let serve = |listen| {
            let options = ServerOptions { listen, token, allow_hosts, tls, ..ServerOptions::default() };
            let content = Content { controls: Some(controls.clone()), ..Content::live(hub.clone()) };
            Server::start(options, content).map(Some).map_err(MonitorError::Listen)
        };
        let server = match listen {
            Listen::AnyPort => serve(None)?,
            Listen::At(address) => serve(Some(address))?,
            Listen::Nowhere => None,
        };
        let overflow = overflow.unwrap_or(if record.is_some() { Overflow::Wait } else { Overflow::Drop });
        let mut outputs = Outputs { hub: Some(hub.clone()), overflow, ..Outputs::default() };
        if let Some(path) = record {
            outputs.file = Some(RecordingFile::create(&path, keep).map_err(MonitorError::Record)?);
            // The program goes on for hours maybe, and whoever watches it should not learn at its end that the disk was full.
            outputs.on_file_error =
                Some(Box::new(|error| eprintln!("vramscope: {error}; the recording ends here, the program goes on")));
        }
        let name = program.clone();
        let device = DeviceId(devices.first().map_or(0, |info| info.device));
        let info = RecordingInfo {
            source: program,
            writer: concat!("vramscope-collector ", env!("CARGO_PKG_VERSION")).to_owned(),
            alloc_conf: settings.to_conf(),
            devices,
            ..RecordingInfo::default()
        };
        let (recorder, handle) = Recorder::start(info, outputs).map_err(MonitorError::Thread)?;
        controls.offer_recording(&hub, &handle, device, folder);
        let push = start_push(push, &name, &hub);
        Ok(Self { recorder, handle, hub, controls, push, server })
    }

    /// What [`DevicePool::recorded`](crate::DevicePool::recorded) takes.
    #[must_use]
    pub fn recorder(&self) -> &RecorderHandle {
        &self.handle
    }

    /// The recording, for whoever else wants to follow it.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Lets those at the page who have the token give every unused segment of `pool` back to the device.
    pub fn allow_empty_cache<D: MemoryDevice>(&self, pool: &DevicePool<D>) {
        self.controls.offer_empty_cache_of(pool);
    }

    /// The address of the page, where one is served, with the token that commands take. Whoever has it may give them.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// See [`recording_at_out_of_memory`](crate::recording_at_out_of_memory).
    pub fn recording_at_out_of_memory(
        &self,
        path: impl Into<PathBuf>,
        tell: impl Fn(io::Result<&Path>) + Send + Sync + 'static,
    ) -> impl Fn(&OutOfMemory) + Send + Sync + 'static {
        observer::recording_at_out_of_memory(self.hub.clone(), self.handle.clone(), path, tell)
    }

    /// Ends the recording, and with it what the page shows; says what was recorded, and what became of the file.
    pub fn stop(self) -> Summary {
        let Self { recorder, push, server, .. } = self;
        let summary = recorder.stop();
        drop(push);
        drop(server);
        summary
    }
}

/// Pushes to the hub that was named, or that the environment names. A program trains on whatever is wrong with that.
fn start_push(named: Option<Address>, program: &str, hub: &Hub) -> Option<Push> {
    let tell = |what: &str| eprintln!("vramscope: {what}");
    let address = named.or_else(|| {
        push_from_env().unwrap_or_else(|why| {
            tell(&format!("{why}; nothing is pushed"));
            None
        })
    })?;
    Push::start(address, program, hub, tell).map_err(|error| tell(&format!("push: {error}"))).ok()
}

/// Why a program cannot be watched.
#[derive(Debug)]
pub enum MonitorError {
    /// The page cannot be served.
    Listen(StartError),
    /// The file cannot be made.
    Record(FileError),
    /// The operating system gives no thread.
    Thread(io::Error),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Record(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "the recorder: {error}"),
        }
    }
}

impl Error for MonitorError {}
