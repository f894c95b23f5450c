//! What the page may tell the program to do.

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
use super::guard::UNAUTHORIZED;
use super::routes::Site;
use crate::controls::{Command, Controls, Obeyed};

/// The most bytes of a command's body.
const BODY_BYTES: usize = 4 << 10;
const TOO_LONG: &str = "a command has at most 4096 bytes";
/// The most characters of a mark's name.
const NAME_CHARS: usize = 200;

/// What is offered, and whether the one who asks may have it done.
pub(super) async fn offered(State(site): State<Arc<Site>>, Extension(rights): Extension<Rights>) -> Response {
    let commands = site.content.controls.as_ref().map(Controls::names).unwrap_or_default();
    answer(StatusCode::OK, &json!({"commands": commands, "allowed": rights.command}))
}

/// Has a command done.
pub(super) async fn obey(
    State(site): State<Arc<Site>>,
    Extension(rights): Extension<Rights>,
    Path(name): Path<String>,
    body: Body,
) -> Response {
    if !rights.command {
        return wrong(StatusCode::UNAUTHORIZED, UNAUTHORIZED.trim_end());
    }
    let offered = site.content.controls.as_ref().filter(|controls| controls.names().contains(&name.as_str()));
    let Some(controls) = offered else {
        return wrong(StatusCode::NOT_FOUND, "this program offers no such command");
    };
    // One that says how long it is need not be read to be too long.
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return wrong(StatusCode::PAYLOAD_TOO_LARGE, TOO_LONG);
    }
    let body = match tokio::time::timeout(site.limits.patience, to_bytes(body, BODY_BYTES)).await {
        Err(_) => return wrong(StatusCode::REQUEST_TIMEOUT, "the command took too long to say"),
        Ok(Err(_)) => return wrong(StatusCode::PAYLOAD_TOO_LARGE, TOO_LONG),
        Ok(Ok(body)) => body,
    };
    let mark = match mark_name(&body) {
        Err(why) if name == "mark" => return wrong(StatusCode::BAD_REQUEST, why),
        mark => mark.unwrap_or_default(),
    };
    // It may wait for a disk, or for a GPU.
    let controls = controls.clone();
    let obeyed = tokio::task::spawn_blocking(move || match name.as_str() {
        "record" => controls.obey(Command::Record),
        "mark" => controls.obey(Command::Mark(&mark)),
        _ => controls.obey(Command::EmptyCache),
    });
    match obeyed.await {
        Ok(Obeyed::Yes(done)) => answer(StatusCode::OK, &json!({"done": done})),
        Ok(Obeyed::No(why)) => wrong(StatusCode::INTERNAL_SERVER_ERROR, &why),
        Ok(Obeyed::Busy) => wrong(StatusCode::TOO_MANY_REQUESTS, "another command is being obeyed; try again"),
        Ok(Obeyed::NotOffered) => wrong(StatusCode::NOT_FOUND, "this program offers no such command"),
        // Its panic was printed when it happened.
        Err(_) => wrong(StatusCode::INTERNAL_SERVER_ERROR, "the program could not do that"),
    }
}

#[derive(Deserialize)]
struct Mark {
    name: String,
}

fn mark_name(body: &[u8]) -> Result<String, &'static str> {
    let Mark { name } = serde_json::from_slice(body).map_err(|_| "a mark is a JSON object with a name, a text")?;
    match name.chars().count() {
        0 => Err("a mark has a name"),
        1..=NAME_CHARS => Ok(name),
        _ => Err("the name of a mark has at most 200 characters"),
    }
}

fn wrong(status: StatusCode, why: &str) -> Response {
    let mut response = answer(status, &json!({"error": why}));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

fn answer(status: StatusCode, json: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{json}\n")).into_response()
}
