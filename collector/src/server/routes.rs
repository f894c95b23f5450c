//! What is to be had, and where.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, RawQuery, State, WebSocketUpgrade};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tokio::sync::{Semaphore, mpsc, watch};

use super::accept::Counts;
use super::access::{Access, Rights};
use super::options::ServerLimits;
use super::sockets::{self, Place};
use super::{Assets, Content, commands, live, metrics, page_address, push, ranges};

/// What the answers are made from.
pub(super) struct Site {
    pub(super) content: Content,
    pub(super) access: Arc<Access>,
    pub(super) limits: ServerLimits,
    pub(super) counts: Arc<Counts>,
    pub(super) stopping: watch::Receiver<bool>,
    /// Places for WebSockets.
    pub(super) places: Arc<Semaphore>,
    /// Places for WebSockets that have not said their token yet.
    pub(super) waiting: Arc<Semaphore>,
    /// Held by every open WebSocket, so that the server can wait for them; nothing is ever sent.
    pub(super) open: mpsc::Sender<Infallible>,
}

impl Site {
    /// A place for one more WebSocket, if there is one.
    pub(super) fn place(&self) -> Option<Place> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(Place { _permit: permit, _open: self.open.clone() })
    }
}

type Shared = State<Arc<Site>>;

/// Everything that is to be had.
pub(super) fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(async || "ok\n"))
        .route("/metrics", get(metrics::answer))
        .route("/commands", get(commands::offered))
        .route("/commands/{name}", post(commands::obey))
        .route("/ws", get(stream))
        .route("/push", get(push::push))
        .route("/trace.vram", get(everything))
        .route("/files/{number}/{name}", get(file))
        .route("/{*path}", get(asset))
        .with_state(site)
}

pub(super) fn not_found() -> Response {
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

async fn stream(
    State(site): Shared,
    Extension(rights): Extension<Rights>,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Some(hub) = site.content.live.clone() else { return not_found() };
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let stopping = site.stopping.clone();
    sockets::open(site, rights, upgrade, async move |socket| live::follow(socket, hub, query, stopping).await)
}

async fn everything(State(site): Shared, method: Method, headers: HeaderMap) -> Response {
    site.content.live.as_ref().map_or_else(not_found, |hub| live::download(hub, &method, &headers))
}

async fn file(
    State(site): Shared,
    path: Result<Path<(usize, String)>, PathRejection>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // What is no number is not told back.
    let Ok(Path((number, name))) = path else { return not_found() };
    match site.content.files.get(number) {
        Some(file) if file.name == name => {
            // Whoever only asks what there is asks for no range of it. And what is served has no version that `If-Range` could name.
            let counts = method == Method::GET && !headers.contains_key(header::IF_RANGE);
            ranges::answer(&file.bytes, headers.get(header::RANGE).filter(|_| counts))
        }
        _ => not_found(),
    }
}
