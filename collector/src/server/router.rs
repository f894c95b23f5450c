//! The server's routes, and the handlers of the page and of recordings.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, RawQuery, State, WebSocketUpgrade};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::json;

use super::access::Rights;
use super::assets::Assets;
use super::content::ServedRecording;
#[cfg(feature = "metrics")]
use super::metrics;
use super::state::AppState;
use super::urls::{page_address, recording_url};
use super::{commands, fleet, live, push, ranges, sockets};

/// The server's state, as request handlers receive it.
type SharedState = State<Arc<AppState>>;

/// Returns the router with all of the server's routes.
pub(super) fn router(state: Arc<AppState>) -> Router {
    let router = Router::new()
        .route("/", get(page))
        .route("/healthz", get(async || "ok\n"))
        .route("/commands", get(commands::list))
        .route("/commands/{name}", post(commands::run))
        .route("/ws", get(follow))
        .route("/push", get(push::push))
        .route("/trace.vram", get(download))
        .route("/fleet", get(async || Redirect::temporary("fleet/")))
        .route("/fleet/", get(fleet_page))
        .route("/fleet/ws", get(follow_fleet))
        .route("/fleet.json", get(fleet_json))
        .route("/files", get(list))
        .route("/files/{index}/{name}", get(file))
        .route("/{*path}", get(asset));
    #[cfg(feature = "metrics")]
    let router = router.route("/metrics", get(metrics::metrics));
    router.with_state(state)
}

/// Returns the response "not found" (404) for a URL that does not exist.
fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found\n").into_response()
}

/// Answers `GET /` with the page. With a single complete recording and no live one, redirects to
/// the address that opens it, and `GET /?fleet` to the fleet page.
async fn page(State(state): SharedState, uri: Uri, headers: HeaderMap) -> Response {
    if uri.query() == Some("fleet") && state.content.fleet.is_some() {
        return Redirect::temporary("./fleet/").into_response();
    }
    match state.content.files.as_slice() {
        // The URL alone tells the page what to open, so that a copied URL opens the same recording.
        [only] if state.content.live.is_none() && uri.query().is_none() => {
            Redirect::temporary(&page_address(0, &only.name)).into_response()
        }
        _ => asset_response(state.content.assets, "", &headers),
    }
}

/// Answers `GET /PATH` with the page's file at that path, or "not found".
async fn asset(State(state): SharedState, Path(path): Path<String>, headers: HeaderMap) -> Response {
    asset_response(state.content.assets, &path, &headers)
}

/// Returns the page's file at `path`, or "not found". An empty path is `index.html`.
fn asset_response(assets: Assets, path: &str, headers: &HeaderMap) -> Response {
    assets.response(path, headers).unwrap_or_else(not_found)
}

/// Answers `GET /ws`: opens the WebSocket of a client that follows the live recording.
async fn follow(
    State(state): SharedState,
    Extension(rights): Extension<Rights>,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, WebSocketUpgradeRejection> {
    let Some(hub) = state.content.live.clone() else { return Ok(not_found()) };
    let stopping = state.stopping.clone();
    let serve = async move |socket| live::follow(socket, hub, query, stopping).await;
    Ok(sockets::open(state, rights, upgrade?, serve))
}

/// Answers `GET /fleet/` with the fleet page, or "not found" without a fleet.
async fn fleet_page(State(state): SharedState, headers: HeaderMap) -> Response {
    match state.content.fleet {
        Some(_) => asset_response(state.content.assets, "fleet/index.html", &headers),
        None => not_found(),
    }
}

/// Answers `GET /fleet.json` with all ranks, in JSON, or "not found" without a fleet.
async fn fleet_json(State(state): SharedState) -> Response {
    let Some(fleet) = &state.content.fleet else { return not_found() };
    ([(header::CONTENT_TYPE, "application/json")], fleet.json()).into_response()
}

/// Answers `GET /fleet/ws`: opens the WebSocket of a page that shows all ranks.
async fn follow_fleet(
    State(state): SharedState,
    Extension(rights): Extension<Rights>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, WebSocketUpgradeRejection> {
    let Some(feed) = state.content.fleet.clone() else { return Ok(not_found()) };
    let stopping = state.stopping.clone();
    let serve = async move |socket| fleet::follow(socket, feed, rights, stopping).await;
    Ok(sockets::open(state, rights, upgrade?, serve))
}

/// Answers `GET /trace.vram` with everything recorded so far, or "not found" without a live
/// recording.
async fn download(State(state): SharedState, method: Method, headers: HeaderMap) -> Response {
    state.content.live.as_ref().map_or_else(not_found, |hub| live::download(hub, &method, &headers))
}

/// Answers `GET /files` with the list of the complete recordings, in JSON.
async fn list(State(state): SharedState) -> Response {
    let entry = |(index, file): (usize, &ServedRecording)| {
        let url = recording_url(index, &file.name);
        json!({"name": file.name, "url": url, "bytes": file.bytes.len(), "events": file.events})
    };
    let files: Vec<_> = state.content.files.iter().enumerate().map(entry).collect();
    commands::json_response(StatusCode::OK, &json!({"files": files}))
}

/// Answers `GET /files/INDEX/NAME` with a complete recording or a range of it, or "not found".
async fn file(
    State(state): SharedState,
    path: Result<Path<(usize, String)>, PathRejection>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // The message of `PathRejection` is not sent, because it repeats the path, which may contain
    // markup.
    let Ok(Path((index, name))) = path else { return not_found() };
    match state.content.files.get(index) {
        Some(file) if file.name == name => {
            // `Range` applies to GET only (RFC 9110, 14.2). These files have no validator, so no
            // `If-Range` can match.
            let honors_range = method == Method::GET && !headers.contains_key(header::IF_RANGE);
            ranges::respond(&file.bytes, headers.get(header::RANGE).filter(|_| honors_range))
        }
        _ => not_found(),
    }
}
