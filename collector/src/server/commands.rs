//! `/commands`: the commands that a user of the page can give to the program.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use serde::Deserialize;
use serde_json::json;

use super::access::Rights;
use super::guard::TOKEN_REQUIRED;
use super::state::AppState;
use crate::controls::{Command, CommandOutcome, Controls};

/// The largest body of a request that gives a command, in bytes; a larger one is refused.
const MAX_BODY_BYTES: usize = 4 << 10;
/// The error message for a body larger than [`MAX_BODY_BYTES`].
const BODY_TOO_LARGE: &str = "the body of a command is larger than 4096 bytes";
/// The most characters of a mark's name; a longer one is refused.
const MAX_MARK_CHARS: usize = 200;
/// The error message for a command that the program does not offer.
const NOT_OFFERED: &str = "this program does not offer the command";

/// Answers `GET /commands` with JSON: the names of the offered commands, and whether this client
/// may give them.
pub(super) async fn list(State(state): State<Arc<AppState>>, Extension(rights): Extension<Rights>) -> Response {
    let commands = state.content.controls.as_ref().map(Controls::names).unwrap_or_default();
    json_response(StatusCode::OK, &json!({"commands": commands, "allowed": rights.can_command}))
}

/// Answers `POST /commands/NAME`: runs the command and returns its message, or an error, as JSON.
pub(super) async fn run(
    State(state): State<Arc<AppState>>,
    Extension(rights): Extension<Rights>,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    if !rights.can_command {
        return error_response(StatusCode::UNAUTHORIZED, TOKEN_REQUIRED.trim_end());
    }
    let controls = state.content.controls.as_ref().filter(|controls| controls.names().contains(&name.as_str()));
    let Some(controls) = controls else {
        return error_response(StatusCode::NOT_FOUND, NOT_OFFERED);
    };
    // A body with a Content-Length above the limit is refused without reading it.
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return error_response(StatusCode::PAYLOAD_TOO_LARGE, BODY_TOO_LARGE);
    }
    let body = match tokio::time::timeout(state.limits.client_timeout, to_bytes(body, MAX_BODY_BYTES)).await {
        Err(_) => return error_response(StatusCode::REQUEST_TIMEOUT, "timed out receiving the command's body"),
        Ok(Err(_)) => return error_response(StatusCode::PAYLOAD_TOO_LARGE, BODY_TOO_LARGE),
        Ok(Ok(body)) => body,
    };
    let mark = match mark_name(&body) {
        Err(reason) if name == "mark" => return error_response(StatusCode::BAD_REQUEST, reason),
        mark => mark.unwrap_or_default(),
    };
    // The command may wait for a disk or a GPU, so it runs on a blocking thread.
    let controls = controls.clone();
    let outcome = tokio::task::spawn_blocking(move || match name.as_str() {
        "record" => controls.run(Command::Record),
        "mark" => controls.run(Command::Mark(&mark)),
        _ => controls.run(Command::EmptyCache),
    });
    match outcome.await {
        Ok(CommandOutcome::Succeeded(message)) => json_response(StatusCode::OK, &json!({"done": message})),
        Ok(CommandOutcome::Failed(reason)) => error_response(StatusCode::INTERNAL_SERVER_ERROR, &reason),
        Ok(CommandOutcome::Busy) => {
            error_response(StatusCode::TOO_MANY_REQUESTS, "another command is still running; try again later")
        }
        Ok(CommandOutcome::NotOffered) => error_response(StatusCode::NOT_FOUND, NOT_OFFERED),
        // The panic hook has already reported the panic.
        Err(_) => error_response(StatusCode::INTERNAL_SERVER_ERROR, "the command panicked; see the program's output"),
    }
}

/// The JSON body of the command `mark`.
#[derive(Deserialize)]
struct MarkBody {
    name: String,
}

/// Returns the mark's name from the JSON body of the command `mark`, or why it is invalid.
fn mark_name(body: &[u8]) -> Result<String, &'static str> {
    let MarkBody { name } = serde_json::from_slice(body).map_err(|_| "a mark is a JSON object with a string `name`")?;
    match name.chars().count() {
        0 => Err("the mark's name is empty"),
        1..=MAX_MARK_CHARS => Ok(name),
        _ => Err("the mark's name is longer than 200 characters"),
    }
}

/// Returns a JSON response whose field `error` is `reason`. With status 401 it also asks for the
/// token.
fn error_response(status: StatusCode, reason: &str) -> Response {
    let mut response = json_response(status, &json!({"error": reason}));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

/// Returns a response whose body is this JSON and a line end.
pub(super) fn json_response(status: StatusCode, json: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{json}\n")).into_response()
}
