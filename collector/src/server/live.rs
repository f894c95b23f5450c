//! A live recording over HTTP: the WebSocket that follows it, and everything so far as one file.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use vramscope_trace::Chunk;

use super::MEDIA_TYPE;
use crate::hub::{Hub, Viewer};

/// Bytes of chunks in one message. A larger one makes a newcomer wait for its first picture, smaller ones cost more each.
const MESSAGE_BYTES: usize = 256 << 10;
/// How long a client may take to answer the closing of its socket.
const CLOSING_TIME: Duration = Duration::from_millis(500);

/// Sends a viewer its chunks until the recording ends, the viewer leaves or the server stops.
pub(super) async fn follow(mut socket: WebSocket, mut viewer: Viewer, mut stopping: watch::Receiver<bool>) {
    let (code, reason) = loop {
        let chunks = viewer.take(MESSAGE_BYTES).chunks;
        if !chunks.is_empty() {
            if socket.send(Message::Binary(joined(&chunks))).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            // In this order, so that a viewer is given the last of a recording before it is told that the server stops.
            biased;
            more = viewer.wait() => if !more {
                break (close_code::NORMAL, "the recording has ended");
            },
            message = socket.recv() => match message {
                // Nothing that a viewer says is of interest; pings are answered below this.
                Some(Ok(message)) if !matches!(message, Message::Close(_)) => {}
                _ => return,
            },
            _ = stopping.wait_for(|&stopping| stopping) => break (close_code::AWAY, "the server stops"),
        }
    };
    let close = CloseFrame { code, reason: reason.into() };
    if socket.send(Message::Close(Some(close))).await.is_ok() {
        let answer = async { while let Some(Ok(_)) = socket.recv().await {} };
        // A client that does not answer is simply left.
        let _ = tokio::time::timeout(CLOSING_TIME, answer).await;
    }
}

fn joined(chunks: &[Arc<Chunk>]) -> Bytes {
    let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.bytes);
    }
    bytes.into()
}

/// Everything so far, as a file.
pub(super) fn download(hub: &Hub) -> Response {
    let chunks = hub.everything();
    let left = chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    let headers =
        [(header::CONTENT_TYPE, MEDIA_TYPE), (header::CONTENT_DISPOSITION, "attachment; filename=\"trace.vram\"")];
    (headers, Body::new(Download { chunks: chunks.into_iter(), left })).into_response()
}

/// A response's body that borrows the hub's chunks instead of copying them.
struct Download {
    chunks: std::vec::IntoIter<Arc<Chunk>>,
    left: u64,
}

struct Shared(Arc<Chunk>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.chunks.next().map(|chunk| {
            self.left -= chunk.bytes.len() as u64;
            Ok(Frame::data(Bytes::from_owner(Shared(chunk))))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
