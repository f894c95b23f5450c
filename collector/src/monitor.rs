//! Everything that watches a program, in one: the recorder, the hub, the page and a file.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use vramscope_pool::{OutOfMemory, Settings};
use vramscope_trace::{DeviceInfo, Info};

use crate::file::{FileError, Keep, RecordingFile};
use crate::hub::Hub;
use crate::memory::MemoryDevice;
use crate::observer;
use crate::recorder::{Outputs, Recorder, RecorderHandle, Summary};
use crate::server::{Content, Server, ServerOptions, StartError};

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
    /// At this address, which must be this machine's alone.
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
    server: Option<Server>,
}

impl Monitor {
    /// Begins to record, and to serve the page.
    ///
    /// # Errors
    /// When the page cannot be served, the file not be made, or the operating system gives no thread.
    pub fn start(options: MonitorOptions) -> Result<Self, MonitorError> {
        let MonitorOptions { program, settings, devices, listen, record, keep } = options;
        let hub = Hub::default();
        // Before the file, so that a mistake costs no earlier recording.
        let serve = |address| {
            let options = ServerOptions { listen: address, ..ServerOptions::default() };
            Server::start(options, Content::live(hub.clone())).map(Some).map_err(MonitorError::Listen)
        };
        let server = match listen {
            Listen::AnyPort => serve(None)?,
            Listen::At(address) => serve(Some(address))?,
            Listen::Nowhere => None,
        };
        let mut outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
        if let Some(path) = record {
            outputs.file = Some(RecordingFile::create(&path, keep).map_err(MonitorError::Record)?);
            // The program goes on for hours maybe, and whoever watches it should not learn at its end that the disk was full.
            outputs.on_file_error =
                Some(Box::new(|error| eprintln!("vramscope: {error}; the recording ends here, the program goes on")));
        }
        let info = Info {
            source: program,
            writer: concat!("vramscope-collector ", env!("CARGO_PKG_VERSION")).to_owned(),
            alloc_conf: settings.to_conf(),
            devices,
            ..Info::default()
        };
        let (recorder, handle) = Recorder::start(info, outputs).map_err(MonitorError::Thread)?;
        Ok(Self { recorder, handle, hub, server })
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

    /// The address of the page, where one is served.
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
        self.recorder.stop()
    }
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
