//! Opening WebSockets: not too many, and to those who have the right.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::access::{Access, Rights};
use super::routes::Site;

/// The most bytes that a client may say at once.
pub(super) const MESSAGE_BYTES: usize = 4 << 10;
/// Where a client's token is wrong or does not come.
const WRONG_TOKEN: u16 = 4401;
/// Sockets at once whose first message is waited for.
pub(super) const WAITING: usize = 32;
/// How long a client may take to answer the closing of its socket.
const CLOSING_TIME: Duration = Duration::from_millis(500);

/// Opens a socket for one who watches, and gives it to `then` once the right is shown.
pub(super) fn open<F>(
    site: Arc<Site>,
    rights: Rights,
    upgrade: WebSocketUpgrade,
    then: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = ()> + Send,
{
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES).max_frame_size(MESSAGE_BYTES);
    upgrade.on_upgrade(async move |mut socket| {
        if !rights.watch {
            // Whoever has not shown the right yet takes no place from those who have.
            let Ok(_waiting) = Arc::clone(&site.waiting).try_acquire_owned() else {
                return close(socket, close_code::AGAIN, TOO_MANY).await;
            };
            if rights.is_wrong || !is_said(&site.access, &mut socket, site.limits.patience).await {
                return close(socket, WRONG_TOKEN, "the token is wrong or was not said").await;
            }
        }
        let Some(_place) = site.place() else {
            return close(socket, close_code::AGAIN, TOO_MANY).await;
        };
        then(socket).await;
    })
}

/// Why a client is sent away that did nothing wrong.
pub(super) const TOO_MANY: &str = "there are too many clients";

/// A place among the open sockets, for as long as it is held.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) _permit: tokio::sync::OwnedSemaphorePermit,
    /// Lets the server wait for the socket when it stops; nothing is ever sent.
    pub(super) _open: mpsc::Sender<Infallible>,
}

#[derive(Deserialize)]
struct Said {
    token: String,
}

/// Whether the first message says the token.
async fn is_said(access: &Access, socket: &mut WebSocket, patience: Duration) -> bool {
    let said = async {
        loop {
            match socket.recv().await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(&text).is_ok_and(|Said { token }| access.admits(&token));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return false,
            }
        }
    };
    tokio::time::timeout(patience, said).await.unwrap_or(false)
}

/// Says why, and leaves.
pub(super) async fn close(mut socket: WebSocket, code: u16, reason: &'static str) {
    let reason = Utf8Bytes::from_static(reason);
    let closing = async {
        if socket.send(Message::Close(Some(CloseFrame { code, reason }))).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // A client that does not answer is simply left.
    let _ = tokio::time::timeout(CLOSING_TIME, closing).await;
}
