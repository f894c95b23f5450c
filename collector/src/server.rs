//! The server: the page, a live recording, and recordings that are complete, over HTTP on this machine.
//!
//! It runs on a thread of its own, so that a program that knows nothing of asynchronous code can embed it.

mod accept;
mod access;
mod assets;
mod commands;
mod guard;
mod listen;
mod live;
mod metrics;
mod options;
mod push;
mod ranges;
mod routes;
mod sockets;
mod tls;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::middleware;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use accept::{Accept, Counts};
use access::Access;
pub(crate) use access::unescaped;
pub use access::{Token, TokenError};
pub use assets::{Asset, Assets};
use guard::{Guard, Hosts};
pub use listen::StartError;
pub use options::{ServerLimits, ServerOptions, TlsFiles};
pub use ranges::RecordingBytes;
use routes::Site;
pub use tls::TlsError;

use crate::controls::Controls;
use crate::gather::Aggregator;
use crate::hub::Hub;

/// The media type of a recording.
pub const MEDIA_TYPE: &str = "application/vnd.vramscope.trace";

/// The port that is used where none was asked for, if it is free.
pub const DEFAULT_PORT: u16 = 7791;
/// How long answers that are under way may take when the server stops.
const STOPPING_TIME: Duration = Duration::from_secs(2);

/// A complete recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The name it is served under.
    pub name: String,
    /// Its bytes.
    pub bytes: RecordingBytes,
}

/// What is served.
#[derive(Clone, Debug)]
pub struct Content {
    /// The page.
    pub assets: Assets,
    /// What `/ws` follows.
    pub live: Option<Hub>,
    /// Complete recordings, at `/files/NUMBER/NAME`. Where there is nothing live, the page opens the first.
    pub files: Vec<Recorded>,
    /// What the program lets those do who have the token.
    pub controls: Option<Controls>,
    /// What `/push` goes to.
    pub gather: Option<Aggregator>,
}

impl Content {
    /// The page on a live recording.
    #[must_use]
    pub fn live(hub: Hub) -> Self {
        Self { assets: Assets::page(), live: Some(hub), files: Vec::new(), controls: None, gather: None }
    }

    /// The page on complete recordings.
    #[must_use]
    pub fn files(files: Vec<Recorded>) -> Self {
        Self { assets: Assets::page(), live: None, files, controls: None, gather: None }
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    address: SocketAddr,
    url: String,
    stopping: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// If the address cannot be listened on, or what the options name cannot be used.
    pub fn start(options: ServerOptions, content: Content) -> Result<Self, StartError> {
        // What can be wrong with the options comes before anybody can connect.
        let tls = options.tls.as_ref().map(tls::acceptor).transpose().map_err(StartError::Tls)?;
        let asked = options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
        let wrong = |error| StartError::Io(asked, error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(wrong)?;
        let listener = {
            let _inside = runtime.enter();
            listen::bind(asked)?
        };
        let address = listener.local_addr().map_err(wrong)?;
        let hosts = Hosts::new(address, &options.allow_hosts).map_err(StartError::Host)?;
        let access = Access::new(options.token.clone(), address.ip().is_loopback(), content.controls.is_some());
        let access = Arc::new(access.map_err(StartError::Random)?);
        let url = listen::url(address, &options, access.token());
        let guard = Guard { hosts, access: Arc::clone(&access), is_secure: tls.is_some() };
        let (stopping, until) = watch::channel(false);
        let serving = Serving { listener, tls, guard, access, content, limits: options.limits, stopping: until };
        let thread = std::thread::Builder::new().name("vramscope-server".into()).spawn(move || {
            runtime.block_on(serving.run());
            // A command may be under way, which nobody waits for any longer than for an answer.
            runtime.shutdown_timeout(STOPPING_TIME);
        });
        Ok(Self { address, url, stopping, thread: Some(thread.map_err(wrong)?) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the page, with the token where there is one: whoever has it may do all that can be done.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its address for people, in which the token is.
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // The panic of a broken server was printed when it happened, and there is nothing to save.
            let _ = thread.join();
        }
    }
}

/// What the server's thread is given.
struct Serving {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    guard: Guard,
    access: Arc<Access>,
    content: Content,
    limits: ServerLimits,
    stopping: watch::Receiver<bool>,
}

impl Serving {
    async fn run(self) {
        let Self { listener, tls, guard, access, content, limits, mut stopping } = self;
        let (open, mut closed) = mpsc::channel(1);
        let (counts, places) = (Arc::<Counts>::default(), Arc::new(Semaphore::new(limits.sockets)));
        let waiting = Arc::new(Semaphore::new(sockets::WAITING));
        let (theirs, until) = (Arc::clone(&counts), stopping.clone());
        let site = Site { content, access, limits, counts: theirs, stopping: until, places, waiting, open };
        let guard = middleware::from_fn_with_state(Arc::new(guard), guard::guard);
        let router = routes::router(Arc::new(site)).layer(guard);
        let accept = Accept { listener, tls, limits, counts, router, stopping: stopping.clone() };
        let deadline = async {
            let _ = stopping.wait_for(|&stopping| stopping).await;
            tokio::time::sleep(STOPPING_TIME).await;
        };
        let finished = async {
            accept.run().await;
            closed.recv().await;
        };
        tokio::select! {
            () = finished => {}
            () = deadline => {}
        }
    }
}

/// The address, below the server's root, of the page with a complete recording open in it.
#[must_use]
pub fn page_address(number: usize, name: &str) -> String {
    // Escaped twice: once as a path, and that as a parameter's value.
    format!("?trace=files/{number}/{}", escaped(&escaped(name)))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => {
                escaped.push('%');
                escaped.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
