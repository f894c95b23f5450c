//! The server: the page, a live recording, and recordings that are complete, over HTTP on this machine.
//!
//! It runs on a thread of its own, so that a program that knows nothing of asynchronous code can embed it.

mod access;
mod assets;
mod guard;
mod live;
mod options;
mod ranges;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, State, WebSocketUpgrade};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::sync::{mpsc, watch};

pub use access::{Token, TokenError};
pub use assets::{Asset, Assets};
pub use options::{ServerLimits, ServerOptions, TlsFiles};
pub use ranges::RecordedBytes;

use crate::controls::Controls;
use crate::hub::{Begin, Hub};

/// The media type of a recording.
pub const MEDIA_TYPE: &str = "application/vnd.vramscope.trace";

/// The port that is used where none was asked for, if it is free.
pub const DEFAULT_PORT: u16 = 7791;
/// How many ports are tried after it.
const PORTS_TRIED: u16 = 20;
/// How long answers that are under way may take when the server stops.
const STOPPING_TIME: Duration = Duration::from_secs(2);

/// A complete recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The name it is served under.
    pub name: String,
    /// Its bytes.
    pub bytes: RecordedBytes,
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
}

impl Content {
    /// The page on a live recording.
    #[must_use]
    pub fn live(hub: Hub) -> Self {
        Self { assets: Assets::page(), live: Some(hub), files: Vec::new(), controls: None }
    }

    /// The page on complete recordings.
    #[must_use]
    pub fn files(files: Vec<Recorded>) -> Self {
        Self { assets: Assets::page(), live: None, files, controls: None }
    }
}

/// Why a server could not start.
#[derive(Debug)]
pub enum StartError {
    /// The address can be reached from other machines, and there is no protection against those yet.
    NotLoopback(SocketAddr),
    /// The operating system refused.
    Io(SocketAddr, io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoopback(address) => write!(
                f,
                "{address} can be reached from other machines; listen on 127.0.0.1 and, to watch from elsewhere, forward \
                 the port: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE",
                port = if address.port() == 0 { DEFAULT_PORT } else { address.port() }
            ),
            Self::Io(address, error) => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stopping: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// If the address is not this machine's alone, or is taken.
    pub fn start(options: ServerOptions, content: Content) -> Result<Self, StartError> {
        let address = options.listen;
        let listener = listen(address)?;
        let asked = address.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT));
        let wrong = |error| StartError::Io(asked, error);
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(wrong)?;
        let (stopping, until) = watch::channel(false);
        let thread = std::thread::Builder::new().name("vramscope-server".into());
        let thread = thread.spawn(move || runtime.block_on(serve(listener, address, content, until))).map_err(wrong)?;
        Ok(Self { address, stopping, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the page.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
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

fn listen(address: Option<SocketAddr>) -> Result<TcpListener, StartError> {
    if let Some(address) = address {
        if !address.ip().is_loopback() {
            return Err(StartError::NotLoopback(address));
        }
        return TcpListener::bind(address).map_err(|error| StartError::Io(address, error));
    }
    let mut port = DEFAULT_PORT;
    loop {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port < DEFAULT_PORT + PORTS_TRIED => port += 1,
            result => return result.map_err(|error| StartError::Io(address, error)),
        }
    }
}

struct Site {
    content: Content,
    stopping: watch::Receiver<bool>,
    /// Held by every open WebSocket, so that the server can wait for them; nothing is ever sent.
    open: mpsc::Sender<Infallible>,
}

type Shared = State<Arc<Site>>;

async fn serve(listener: TcpListener, address: SocketAddr, content: Content, mut stopping: watch::Receiver<bool>) {
    let listener =
        tokio::net::TcpListener::from_std(listener).expect("a socket that listens and does not block is one for tokio");
    let (open, mut closed) = mpsc::channel(1);
    // Chunks are sent when they are made; waiting for more to fill a packet would only delay them.
    let listener = listener.tap_io(|connection| {
        // Without it everything still works, a little later.
        let _ = connection.set_nodelay(true);
    });
    let site = Arc::new(Site { content, stopping: stopping.clone(), open });
    let guard = middleware::from_fn(move |request, next| guard::guard(address, request, next));
    let router = router(site).layer(guard);
    let mut until = stopping.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = until.wait_for(|&stopping| stopping).await;
    });
    let deadline = async {
        let _ = stopping.wait_for(|&stopping| stopping).await;
        tokio::time::sleep(STOPPING_TIME).await;
    };
    let finished = async {
        // The listener is bound, and accept errors are retried, so there is no error that could come here.
        let _ = serving.await;
        closed.recv().await;
    };
    tokio::select! {
        () = finished => {}
        () = deadline => {}
    }
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(async || "ok\n"))
        .route("/ws", get(stream))
        .route("/trace.vram", get(everything))
        .route("/files/{number}/{name}", get(file))
        .route("/{*path}", get(asset))
        .with_state(site)
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "there is nothing here\n").into_response()
}

async fn page(State(site): Shared, uri: axum::http::Uri) -> Response {
    match site.content.files.first() {
        // The page knows what to open by its address alone, so that a copied address opens the same.
        Some(first) if site.content.live.is_none() && uri.query().is_none() => {
            Redirect::temporary(&page_address(0, &first.name)).into_response()
        }
        _ => serve_asset(site.content.assets, ""),
    }
}

async fn asset(State(site): Shared, Path(path): Path<String>) -> Response {
    serve_asset(site.content.assets, &path)
}

fn serve_asset(assets: Assets, path: &str) -> Response {
    let Some((media_type, bytes)) = assets.get(path) else { return not_found() };
    ([(header::CONTENT_TYPE, media_type)], bytes).into_response()
}

async fn stream(State(site): Shared, upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>) -> Response {
    let Some(hub) = &site.content.live else { return not_found() };
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let viewer = hub.viewer(Begin::Newest);
    let (stopping, open) = (site.stopping.clone(), site.open.clone());
    upgrade.on_upgrade(async move |socket| {
        live::follow(socket, viewer, stopping).await;
        drop(open);
    })
}

async fn everything(State(site): Shared) -> Response {
    site.content.live.as_ref().map_or_else(not_found, live::download)
}

async fn file(
    State(site): Shared,
    Path((number, name)): Path<(usize, String)>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    match site.content.files.get(number) {
        Some(file) if file.name == name => {
            // Whoever only asks what there is asks for no range of it. And what is served has no version that `If-Range` could name.
            let counts = method == Method::GET && !headers.contains_key(header::IF_RANGE);
            ranges::answer(&file.bytes, headers.get(header::RANGE).filter(|_| counts))
        }
        _ => not_found(),
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
