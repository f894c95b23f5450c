//! The HTTP server: the page, a live recording and complete recordings.
//!
//! The server runs on its own thread, so that synchronous programs can embed it.

mod accept;
mod access;
mod assets;
mod commands;
mod content;
mod fleet;
mod fleet_feed;
mod guard;
mod listen;
mod live;
mod metric_family;
#[cfg(feature = "metrics")]
mod metrics;
mod options;
mod push;
mod ranges;
mod router;
mod sockets;
mod state;
mod tls;
mod urls;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware;
use tokio::sync::{mpsc, watch};

use accept::{Accept, ConnectionCounts};
use access::Access;
pub use access::{Token, TokenError};
pub use assets::Assets;
pub use content::{ServedContent, ServedRecording};
pub use fleet_feed::{FleetClient, FleetFeed};
use guard::{Guard, HostPolicy};
pub use listen::{DEFAULT_PORT, StartError};
use live::wait_until_stopping;
pub use metric_family::{MetricFamily, MetricSample, MetricValue};
pub use options::{ANY_HOST, ServerLimits, ServerOptions, TlsFiles};
pub use ranges::{MEDIA_TYPE, RecordingBytes};
use state::AppState;
use tls::TlsAcceptor;
pub use tls::TlsError;
pub use urls::page_address;

/// How long responses in progress may take when the server stops; then their connections are
/// closed.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// A running HTTP server. Dropping this value stops the server.
///
/// ```
/// use vramscope_collector::{Hub, ServedContent, Server, ServerOptions};
///
/// let hub = Hub::default();
/// let options = ServerOptions { listen: Some(([127, 0, 0, 1], 0).into()), ..Default::default() };
/// let server = Server::start(options, ServedContent::live(hub))?;
/// assert!(server.url().starts_with("http://127.0.0.1:"));
/// # Ok::<(), vramscope_collector::StartError>(())
/// ```
pub struct Server {
    address: SocketAddr,
    url: String,
    stopping: watch::Sender<bool>,
    /// Disconnected when the server's thread ends.
    finished: std::sync::mpsc::Receiver<()>,
}

impl Server {
    /// Starts a server on its own thread.
    ///
    /// # Errors
    /// If the address cannot be listened on, or an option is invalid.
    pub fn start(options: ServerOptions, content: ServedContent) -> Result<Self, StartError> {
        // Options are checked before the first client can connect.
        let tls = options.tls.as_ref().map(TlsAcceptor::from_files).transpose()?;
        let requested = options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
        let io_error = |error| StartError::Io(requested, error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(io_error)?;
        let listener = {
            let _runtime_context = runtime.enter();
            listen::bind(requested)?
        };
        let address = listener.local_addr().map_err(io_error)?;
        let hosts = HostPolicy::new(address, &options.allow_hosts).map_err(StartError::Host)?;
        // With any host name allowed, only the token protects against DNS rebinding.
        let is_local = address.ip().is_loopback() && !options.allows_any_host();
        let access = Access::new(options.token.clone(), is_local, content.controls.is_some());
        let access = Arc::new(access.map_err(StartError::Random)?);
        let url = listen::url(address, &options, access.token());
        let guard = Guard { hosts, access: Arc::clone(&access), is_https: tls.is_some() };
        let guard = middleware::from_fn_with_state(Arc::new(guard), guard::check_request);
        let (stopping, stopped) = watch::channel(false);
        let (open_sockets, all_sockets_closed) = mpsc::channel(1);
        let counts = Arc::<ConnectionCounts>::default();
        let limits = options.limits;
        let state = AppState::new(content, access, limits, Arc::clone(&counts), stopped.clone(), open_sockets);
        let router = router::router(Arc::new(state)).layer(guard);
        let accept = Accept { listener, tls, limits, counts, router, stopping: stopped };
        let (finishing, finished) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("vramscope-server".into()).spawn(move || {
            let _finishing = finishing;
            runtime.block_on(serve(accept, all_sockets_closed));
            // A command may still run on a blocking thread; it gets as long as a response.
            runtime.shutdown_timeout(SHUTDOWN_TIME);
        });
        thread.map_err(io_error)?;
        Ok(Self { address, url, stopping, finished })
    }

    /// Returns the address that the server listens on, with the port actually in use.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the page's URL, including the token if the server has one.
    ///
    /// The URL grants full access to the server: do not log it.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL is omitted because it contains the token.
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        // The thread is not joined: it may be reading from a disk that hangs. Responses may take
        // SHUTDOWN_TIME, and then blocking threads as long again.
        let _ = self.finished.recv_timeout(SHUTDOWN_TIME * 3);
    }
}

/// Serves connections until the server is stopped, then gives responses in progress
/// [`SHUTDOWN_TIME`]. Nothing is sent to `all_sockets_closed`; it ends with the last WebSocket.
async fn serve(accept: Accept, mut all_sockets_closed: mpsc::Receiver<Infallible>) {
    let mut stopping = accept.stopping.clone();
    let deadline = async {
        wait_until_stopping(&mut stopping).await;
        tokio::time::sleep(SHUTDOWN_TIME).await;
    };
    let finished = async {
        accept.run().await;
        all_sockets_closed.recv().await;
    };
    tokio::select! {
        () = finished => {}
        () = deadline => {}
    }
}

#[cfg(test)]
mod tests;
