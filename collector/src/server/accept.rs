//! Taking connections: not more than there is room for, and each no longer than it does something.

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
use tokio_rustls::TlsAcceptor;

use super::options::ServerLimits;

/// The most bytes of a request's head: that of a browser, behind two proxies and with the cookies of a dozen servers, takes 4 KiB.
const HEAD_BYTES: usize = 16 << 10;
/// How long a client may take nothing of what it is sent.
const STALLED_TIME: Duration = Duration::from_secs(45);
/// How long the next connection waits after one that the operating system had nothing for: files are free again in a moment, or never.
const BREATH: Duration = Duration::from_millis(50);
/// Bytes of one client that are read before everyone else has a turn: as many of the smallest frames as take less than a millisecond.
const TURN_BYTES: usize = 4 << 10;
/// What a TLS client says first.
const HANDSHAKE: u8 = 0x16;

const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 27\r\n\
    retry-after: 5\r\nconnection: close\r\n\r\nthere are too many clients\n";
const NOT_HTTPS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 38\r\n\
    connection: close\r\n\r\nthis is an HTTPS server: use https://\n";

/// What there is of connections.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Those that are open.
    pub(super) open: AtomicUsize,
    /// Those that there ever were.
    pub(super) accepted: AtomicU64,
    /// Those that were sent away, or had to make room, because there were too many.
    pub(super) refused: AtomicU64,
}

/// Connections over which nobody has shown the right to anything yet, the oldest first.
#[derive(Clone, Debug, Default)]
struct Silent(Arc<Mutex<BTreeMap<u64, AbortHandle>>>);

impl Silent {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        // Nothing under the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes connections.
pub(super) struct Accept {
    pub(super) listener: TcpListener,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) limits: ServerLimits,
    pub(super) counts: Arc<Counts>,
    pub(super) router: Router,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Accept {
    /// Answers whoever connects, until the server stops and what is under way then is done.
    pub(super) async fn run(self) {
        let (mut connections, silent, mut stopping) = (JoinSet::new(), Silent::default(), self.stopping.clone());
        loop {
            let accepted = tokio::select! {
                _ = stopping.wait_for(|&stopping| stopping) => break,
                // What has ended is forgotten; a panic was printed when it happened, and is that connection's alone.
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.take(stream, &mut connections, &silent).await,
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) => sleep(BREATH).await,
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }

    async fn take(&self, stream: TcpStream, connections: &mut JoinSet<()>, silent: &Silent) {
        let number = self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        if self.counts.open.load(Ordering::Relaxed) >= self.limits.connections {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            let oldest = silent.lock().pop_first();
            let Some((_, oldest)) = oldest else { return self.refuse(&stream) };
            oldest.abort();
            // So that it is gone before the next is taken.
            tokio::task::yield_now().await;
        }
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let heard = Heard { number, silent: silent.clone() };
        let place = Place { heard, counts: Arc::clone(&self.counts) };
        let (tls, router) = (self.tls.clone(), self.router.clone());
        let serving = Serving { place, router, patience: self.limits.patience, stopping: self.stopping.clone() };
        // Registered before it runs: there is one thread, and it is here.
        let handle = connections.spawn(serving.connection(stream, tls));
        silent.lock().insert(number, handle);
    }

    /// Says why, where that takes no time.
    fn refuse(&self, stream: &TcpStream) {
        if self.tls.is_none() {
            let _ = stream.try_write(FULL);
        }
    }
}

/// Whether accepting failed because of the connection that was next, which had gone again.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A connection's place among the others, until it ends.
struct Place {
    heard: Heard,
    counts: Arc<Counts>,
}

/// Takes note that somebody has the right to be there, whose connection makes room for nobody from then on. Goes with every request.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    number: u64,
    silent: Silent,
}

impl Heard {
    pub(super) fn has_the_right(&self) {
        self.silent.lock().remove(&self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.heard.has_the_right();
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection is served with.
struct Serving {
    place: Place,
    router: Router,
    patience: Duration,
    stopping: watch::Receiver<bool>,
}

impl Serving {
    async fn connection(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Chunks are sent when they are made; waiting for more to fill a packet would only delay them. Without it everything still
        // works, a little later.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else { return self.http(stream).await };
        let handshake = async {
            let mut first = [0];
            if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
                let _ = stream.try_write(NOT_HTTPS);
                return Err(io::ErrorKind::InvalidData.into());
            }
            tls.accept(stream).await
        };
        if let Ok(Ok(stream)) = timeout(self.patience, handshake).await {
            self.http(stream).await;
        }
    }

    async fn http<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(self, stream: S) {
        let Self { place, router, patience, mut stopping } = self;
        let router = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(place.heard.clone());
            router.call(request)
        });
        let mut http = http1::Builder::new();
        // The time for a head also runs while a connection waits for the next request.
        http.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(HEAD_BYTES);
        let stream = TokioIo::new(Moving { stream, stalled: None, read_bytes: 0 });
        let mut connection = pin!(http.serve_connection(stream, service).with_upgrades());
        // How a connection ends is the client's affair.
        tokio::select! {
            _ = &mut connection => return,
            _ = stopping.wait_for(|&stopping| stopping) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// A connection that ends when its client takes nothing for [`STALLED_TIME`], and whose client holds nobody up who says very much.
struct Moving<S> {
    stream: S,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    /// What was read since the others had their turn.
    read_bytes: usize,
}

impl<S> Moving<S> {
    /// What came of an attempt to send; or that it has been in vain for too long.
    fn moved<T>(&mut self, sent: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(STALLED_TIME))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Moving<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.read_bytes >= TURN_BYTES {
            // There is one thread, and what reads goes on for as long as there is more: 100,000 frames that say nothing, and their senders
            // have more. It is woken when everyone else has had a turn.
            this.read_bytes = 0;
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        let room = into.remaining().min(TURN_BYTES - this.read_bytes);
        let mut part = ReadBuf::new(into.initialize_unfilled_to(room));
        let read = Pin::new(&mut this.stream).poll_read(context, &mut part);
        let count = part.filled().len();
        into.advance(count);
        this.read_bytes = if read.is_ready() { this.read_bytes + count } else { 0 };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Moving<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.moved(sent, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.moved(sent, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(context);
        self.moved(sent, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_shutdown(context);
        self.moved(sent, context)
    }
}
