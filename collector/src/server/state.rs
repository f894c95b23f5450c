//! The state that all request handlers share.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::accept::ConnectionCounts;
use super::access::Access;
use super::content::ServedContent;
use super::options::ServerLimits;

/// The most WebSockets that may wait for their token at once; a further one is closed.
const MAX_UNAUTHORIZED_SOCKETS: usize = 32;

/// The state that all request handlers share.
pub(super) struct AppState {
    pub(super) content: ServedContent,
    pub(super) access: Arc<Access>,
    pub(super) limits: ServerLimits,
    /// Read by `/metrics` only.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only `/metrics` reads it"))]
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) stopping: watch::Receiver<bool>,
    /// One permit for each WebSocket that may be open at once.
    socket_permits: Arc<Semaphore>,
    /// One permit for each WebSocket that has not sent its token yet.
    unauthorized_permits: Arc<Semaphore>,
    /// Cloned into every open WebSocket, so that the server can wait until all are closed. Nothing
    /// is ever sent.
    open_sockets: mpsc::Sender<Infallible>,
}

impl AppState {
    pub(super) fn new(
        content: ServedContent,
        access: Arc<Access>,
        limits: ServerLimits,
        counts: Arc<ConnectionCounts>,
        stopping: watch::Receiver<bool>,
        open_sockets: mpsc::Sender<Infallible>,
    ) -> Self {
        let socket_permits = Arc::new(Semaphore::new(limits.sockets));
        let unauthorized_permits = Arc::new(Semaphore::new(MAX_UNAUTHORIZED_SOCKETS));
        Self { content, access, limits, counts, stopping, socket_permits, unauthorized_permits, open_sockets }
    }

    /// Reserves one of the WebSockets that may be open at once. `None` if all are in use.
    pub(super) fn socket_permit(&self) -> Option<SocketPermit> {
        let permit = Arc::clone(&self.socket_permits).try_acquire_owned().ok()?;
        Some(SocketPermit { _permit: permit, _open: self.open_sockets.clone() })
    }

    /// Reserves one of the WebSockets that may wait for their token at once. `None` if all are in
    /// use.
    pub(super) fn unauthorized_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.unauthorized_permits).try_acquire_owned().ok()
    }
}

/// Permission for one open WebSocket. Hold it until the socket is closed, then drop it.
#[derive(Debug)]
pub(super) struct SocketPermit {
    _permit: OwnedSemaphorePermit,
    /// Lets the server wait for this socket when it stops.
    _open: mpsc::Sender<Infallible>,
}
