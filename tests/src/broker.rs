//! A NATS server with JetStream for tests, which they can kill, restart and reconfigure.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::ProcessUsage;

/// The environment variable with the path of `nats-server`. `cargo xtask test` sets it.
pub const BROKER_VARIABLE: &str = "VRAMSCOPE_NATS_SERVER";
/// Longest time until the broker accepts connections, on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `nats-server`. Dropping it ends the server and deletes its files.
#[derive(Debug)]
pub struct Broker {
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Broker {
    /// Starts a server that accepts everyone, on a free port, with an empty store.
    ///
    /// # Panics
    /// Panics if the server does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::with_config("")
    }

    /// Starts a server with these lines in its configuration, besides port and store.
    ///
    /// # Panics
    /// Panics if the server does not start.
    #[must_use]
    pub fn with_config(lines: &str) -> Self {
        let mut broker = Self::stopped(lines);
        broker.run();
        broker
    }

    /// Prepares a server with these lines in its configuration, and does not start it.
    pub(crate) fn stopped(lines: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let port = free_port();
        let store = folder.path().join("store");
        // Without a limit, the server takes three quarters of the free disk space, and refuses
        // streams that may grow beyond them. Tests fill far less than their streams may take.
        let config = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: {:?}, max_file_store: 64GB }}\n{lines}\n",
            store.display().to_string()
        );
        fs::write(folder.path().join("nats.conf"), config).expect("the folder is writable");
        Self { folder, port, child: None }
    }

    /// Returns the folder of its store.
    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Returns the size of its store, in bytes.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        folder_bytes(&self.store())
    }

    /// Returns the address of a run at this broker: `nats://127.0.0.1:PORT/RUN`.
    #[must_use]
    pub fn address(&self, run: &str) -> String {
        format!("nats://{}/{run}", self.socket())
    }

    /// Returns the address of a run at this broker for the given user and password.
    #[must_use]
    pub fn address_for(&self, user: &str, password: &str, run: &str) -> String {
        format!("nats://{user}:{password}@{}/{run}", self.socket())
    }

    /// Returns the server's address.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns what the server uses; `None` while it does not run.
    #[must_use]
    pub fn usage(&self) -> Option<ProcessUsage> {
        ProcessUsage::of(self.child.as_ref()?.id())
    }

    /// Kills the server, as after a crash of its machine. Its store stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the server and deletes its store, as after the loss of its disk.
    ///
    /// # Panics
    /// Panics if the store cannot be deleted.
    pub fn lose_store(&mut self) {
        self.kill();
        // Not the folder, which may be a file system of its own.
        for entry in fs::read_dir(self.store()).expect("the server has created its store") {
            fs::remove_dir_all(entry.expect("the store can be read").path()).expect("the store can be deleted");
        }
    }

    /// Starts the server again, with its store.
    ///
    /// # Panics
    /// Panics if it does not start.
    pub fn run(&mut self) {
        self.kill();
        let log = fs::File::create(self.log_path()).expect("the folder is writable");
        let child = Command::new(binary())
            .arg("--config")
            .arg(self.folder.path().join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start nats-server: {error}; set {BROKER_VARIABLE} to its path"));
        self.child = Some(child);
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < deadline, "nats-server does not start: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns what the server has logged since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("nats.log")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the size of all files below a folder, in bytes. Files that are being deleted count as
/// empty.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// Returns the path of `nats-server`.
fn binary() -> PathBuf {
    let path = env::var_os(BROKER_VARIABLE).map(PathBuf::from);
    path.unwrap_or_else(|| Path::new("nats-server").to_owned())
}

/// Returns a port that is free now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("a bound socket has an address").port()
}
