//! Opens WebSockets: checks the token and the limits, and closes with a reason.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use axum::response::Response;
use serde::Deserialize;
use vramscope_trace::live_protocol::WRONG_TOKEN;

use super::access::{Access, Rights};
use super::state::AppState;

/// The most bytes of a message from a viewer; a larger one ends the connection.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// The most time that a client may take to answer the close frame; then the connection is dropped.
const CLOSING_TIME: Duration = Duration::from_millis(500);
/// Close reason when a limit on WebSockets is reached.
pub(super) const TOO_MANY_CLIENTS: &str = "the server has too many clients; retry later";

/// Opens a viewer's WebSocket and passes it to `serve` once the client is authorized. Closes it if
/// the token is wrong or missing, or a limit on WebSockets is reached.
pub(super) fn open<F>(
    state: Arc<AppState>,
    rights: Rights,
    upgrade: WebSocketUpgrade,
    serve: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send,
{
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    upgrade.on_upgrade(async move |mut socket| {
        if !rights.can_view {
            // Unauthorized clients have their own limit, so that they cannot keep out authorized
            // ones.
            let Some(_permit) = state.unauthorized_permit() else {
                return close(socket, close_code::AGAIN, TOO_MANY_CLIENTS.into()).await;
            };
            let timeout = state.limits.client_timeout;
            if rights.has_wrong_token || !receives_token(&state.access, &mut socket, timeout).await {
                return close(socket, WRONG_TOKEN, "the token is wrong or missing".into()).await;
            }
        }
        let Some(_permit) = state.socket_permit() else {
            return close(socket, close_code::AGAIN, TOO_MANY_CLIENTS.into()).await;
        };
        serve(socket).await;
    })
}

/// The first message (JSON) of a client that sent no token with its request.
#[derive(Deserialize)]
struct TokenMessage {
    token: String,
}

/// Returns true if the socket's first message arrives within `timeout` and has the right token,
/// otherwise false.
async fn receives_token(access: &Access, socket: &mut WebSocket, timeout: Duration) -> bool {
    let first_message = async {
        loop {
            match socket.recv().await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text).is_ok_and(|TokenMessage { token }| access.is_token(&token));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return false,
            }
        }
    };
    tokio::time::timeout(timeout, first_message).await.unwrap_or(false)
}

/// Closes a WebSocket with a reason, and waits briefly for the client's close frame.
pub(super) async fn close(mut socket: WebSocket, code: u16, reason: Utf8Bytes) {
    let closing = async {
        if socket.send(Message::Close(Some(CloseFrame { code, reason }))).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // If the client does not answer, dropping the socket closes the connection.
    let _ = tokio::time::timeout(CLOSING_TIME, closing).await;
}
