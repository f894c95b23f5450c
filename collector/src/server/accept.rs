//! Accepts connections, within limits on their number and on how long they may do nothing.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Sleep, sleep, timeout};

use super::options::ServerLimits;
use super::tls::TlsAcceptor;

/// The most bytes of a request's line and headers; a larger request is refused. A browser behind
/// two proxies, with the cookies of a dozen other servers, sends about 4 KiB.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How long a write to a client may be blocked: a connection whose client has received nothing for
/// this long is closed.
const WRITE_STALL_TIME: Duration = Duration::from_secs(45);
/// Pause after a connection could not be accepted, before the server tries again. The usual reason
/// is a lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Number of bytes that are read from one client before other tasks run. Handling this many bytes
/// of the smallest WebSocket frames takes less than a millisecond.
const READ_TURN_BYTES: usize = 4 << 10;
/// The first byte that a TLS client sends. With any other first byte, the client uses plain HTTP.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;

/// The HTTP response to a connection beyond [`ServerLimits::connections`].
const TOO_MANY_CLIENTS_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 45\r\n\
    retry-after: 5\r\nconnection: close\r\n\r\nthe server has too many clients; retry later\n";
/// The HTTP response to a client that uses plain HTTP although the server has a certificate.
const HTTPS_REQUIRED_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 38\r\n\
    connection: close\r\n\r\nthis is an HTTPS server: use https://\n";

/// Numbers of open, accepted and refused connections, for `/metrics` and for the limit on open
/// ones.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounts {
    /// Connections that are open.
    pub(super) open: AtomicUsize,
    /// Connections accepted since the server started.
    pub(super) accepted: AtomicU64,
    /// Connections that were refused or replaced because the limit was reached.
    pub(super) refused: AtomicU64,
}

/// Connections that have not sent the token yet, in order of acceptance. When the server has too
/// many connections, the oldest of these is closed for a new one.
#[derive(Clone, Debug, Default)]
struct UnauthorizedConnections(Arc<Mutex<BTreeMap<u64, AbortHandle>>>);

impl UnauthorizedConnections {
    /// Locks the map from a connection's number to the handle that aborts its task.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        // Nothing under the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop that accepts connections and serves each in its own task.
pub(super) struct Accept {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) limits: ServerLimits,
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) router: Router,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Accept {
    /// Accepts and serves connections until the server stops and all requests in progress are
    /// answered.
    pub(super) async fn run(self) {
        let (mut connections, mut stopping) = (JoinSet::new(), self.stopping.clone());
        let unauthorized = UnauthorizedConnections::default();
        loop {
            let accepted = tokio::select! {
                _ = stopping.wait_for(|&stopping| stopping) => break,
                // The panic hook has already reported a panic, which ends its own connection only.
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.serve(stream, &mut connections, &unauthorized).await,
                Err(error) if client_disconnected(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; retrying");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }

    /// Serves a new connection in its own task. At the limit on connections, first closes the
    /// oldest unauthorized one; if all are authorized, refuses the new one.
    async fn serve(&self, stream: TcpStream, connections: &mut JoinSet<()>, unauthorized: &UnauthorizedConnections) {
        let number = self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        if self.counts.open.load(Ordering::Relaxed) >= self.limits.connections {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            let oldest = unauthorized.lock().pop_first();
            let Some((_, oldest)) = oldest else { return self.refuse(&stream) };
            oldest.abort();
            // Lets the aborted task end before the new connection is counted.
            yield_now().await;
        }
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let handle = ConnectionHandle { number, unauthorized: unauthorized.clone() };
        let open = OpenConnection { handle, counts: Arc::clone(&self.counts) };
        let (tls, router) = (self.tls.clone(), self.router.clone());
        let client_timeout = self.limits.client_timeout;
        let task = ConnectionTask { open, router, client_timeout, stopping: self.stopping.clone() };
        // The server has one thread, so the task is registered before it first runs.
        let abort_handle = connections.spawn(task.run(stream, tls));
        unauthorized.lock().insert(number, abort_handle);
    }

    /// Sends [`TOO_MANY_CLIENTS_RESPONSE`] over plain HTTP, if that is possible without waiting.
    /// The caller then closes the connection by dropping it.
    fn refuse(&self, stream: &TcpStream) {
        if self.tls.is_none() {
            let _ = stream.try_write(TOO_MANY_CLIENTS_RESPONSE);
        }
    }
}

/// Returns true if accepting failed because the client had already disconnected, false for errors
/// of this machine.
fn client_disconnected(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Identifies the connection of a request, so that a request with the token authorizes its
/// connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionHandle {
    number: u64,
    unauthorized: UnauthorizedConnections,
}

impl ConnectionHandle {
    /// Marks the connection as authorized: it is no longer closed to make room for newer ones.
    pub(super) fn mark_authorized(&self) {
        self.unauthorized.lock().remove(&self.number);
    }
}

/// Keeps a connection counted in [`ConnectionCounts::open`] until dropped.
struct OpenConnection {
    handle: ConnectionHandle,
    counts: Arc<ConnectionCounts>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.handle.mark_authorized();
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that serves one connection.
struct ConnectionTask {
    open: OpenConnection,
    router: Router,
    client_timeout: Duration,
    stopping: watch::Receiver<bool>,
}

impl ConnectionTask {
    /// Performs the TLS handshake if `tls` is given, then serves HTTP until the connection ends.
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Chunks are sent as soon as they are made; Nagle's algorithm would only delay them. If
        // this fails the server still works, with more latency.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else { return self.serve_http(stream).await };
        let handshake = async {
            let mut first = [0];
            if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE_RECORD {
                let _ = stream.try_write(HTTPS_REQUIRED_RESPONSE);
                return Err(io::ErrorKind::InvalidData.into());
            }
            tls.accept(stream).await
        };
        if let Ok(Ok(stream)) = timeout(self.client_timeout, handshake).await {
            self.serve_http(stream).await;
        }
    }

    /// Answers HTTP requests on `stream` until the connection ends. When the server stops, finishes
    /// the request in progress and closes the connection.
    async fn serve_http<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(self, stream: S) {
        let Self { open, router, client_timeout, mut stopping } = self;
        let router = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(open.handle.clone());
            router.call(request)
        });
        let mut http = http1::Builder::new();
        // This timeout also covers the wait for the next request on a kept-alive connection.
        http.timer(TokioTimer::new()).header_read_timeout(client_timeout).max_buf_size(MAX_HEAD_BYTES);
        let stream = TokioIo::new(LimitedStream { stream, stall_timer: None, read_bytes: 0 });
        let mut connection = pin!(http.serve_connection(stream, service).with_upgrades());
        // Errors are ignored: they are caused by the client and end only its connection.
        tokio::select! {
            _ = &mut connection => return,
            _ = stopping.wait_for(|&stopping| stopping) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// A stream that fails if its client receives nothing for [`WRITE_STALL_TIME`], and that lets other
/// tasks run after every [`READ_TURN_BYTES`] read.
struct LimitedStream<S> {
    stream: S,
    /// Runs while a write is pending.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Bytes read since the last yield.
    read_bytes: usize,
}

impl<S> LimitedStream<S> {
    /// Returns `written`, the result of a write, unless writes have been pending for
    /// [`WRITE_STALL_TIME`]: then returns a timeout error.
    fn with_stall_timeout<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_timer = None;
            return written;
        }
        ready!(self.stall_timer.get_or_insert_with(|| Box::pin(sleep(WRITE_STALL_TIME))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read_bytes >= READ_TURN_BYTES {
            // The server has one thread, and a WebSocket reads for as long as bytes are available.
            // A client that keeps sending empty frames would otherwise block all other clients.
            this.read_bytes = 0;
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        let limit = buffer.remaining().min(READ_TURN_BYTES - this.read_bytes);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(limit));
        let read = Pin::new(&mut this.stream).poll_read(context, &mut part);
        let count = part.filled().len();
        buffer.advance(count);
        this.read_bytes = if read.is_ready() { this.read_bytes + count } else { 0 };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_stall_timeout(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.with_stall_timeout(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(context);
        self.with_stall_timeout(written, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_shutdown(context);
        self.with_stall_timeout(written, context)
    }
}
