//! Recordings, whole or by ranges of their bytes, from memory or from a disk.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::task::JoinHandle;
use vramscope_trace::Chunk;

use super::MEDIA_TYPE;
use crate::file::{self, FileView};
use crate::hub::Held;

/// Bytes of a file that are in memory at once for one answer.
const PIECE_BYTES: u64 = 256 << 10;

/// The bytes of a recording: the beginning of a file that is read when it is asked for, what is in memory, or that one behind the other.
#[derive(Clone, Debug, Default)]
pub struct RecordingBytes {
    file: Option<(Arc<Mutex<File>>, u64)>,
    memory: InMemory,
}

#[derive(Clone, Debug)]
enum InMemory {
    Bytes(Bytes),
    /// What a hub holds, for as long as it does.
    Held(Held),
}

impl Default for InMemory {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl InMemory {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Held(held) => held.len(),
        }
    }

    /// The first bytes of a range that is not empty.
    fn begin(&self, range: Range<u64>) -> io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Self::Held(held) => {
                let (chunk, at) = held.chunk_at(range.start).ok_or(io::ErrorKind::NotFound)?;
                let bytes = Bytes::from_owner(Shared(chunk)).slice(at..);
                let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                Ok(bytes.slice(..bytes.len().min(len)))
            }
        }
    }
}

/// A chunk that is sent as it is, without a copy for everyone who is sent it.
pub(super) struct Shared(pub(super) Arc<Chunk>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl RecordingBytes {
    /// The first `len` bytes of a file, and `behind` after them.
    #[must_use]
    pub fn of_file(file: File, len: u64, behind: Vec<u8>) -> Self {
        Self { file: Some((Arc::new(Mutex::new(file)), len)), memory: InMemory::Bytes(behind.into()) }
    }

    /// Bytes in memory.
    #[must_use]
    pub fn of_memory(bytes: Vec<u8>) -> Self {
        Self { file: None, memory: InMemory::Bytes(bytes.into()) }
    }

    /// The first `len` bytes of a file that is being written.
    pub(super) fn of_view(view: &FileView, len: u64) -> Self {
        Self { file: Some((view.file(), len)), memory: InMemory::default() }
    }

    /// What a hub holds.
    pub(super) fn of_held(held: Held) -> Self {
        Self { file: None, memory: InMemory::Held(held) }
    }

    fn file_len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, len)| *len)
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.file_len() + self.memory.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn body(&self, range: Range<u64>) -> Body {
        Body::new(Reading { content: self.clone(), left: range, piece: None, is_cut_off: false })
    }

    /// The first bytes of a range that is not empty.
    fn begin(&self, range: &Range<u64>) -> Piece {
        match &self.file {
            Some((file, len)) if range.start < *len => {
                let (file, range) = (Arc::clone(file), range.start..range.end.min(*len).min(range.start + PIECE_BYTES));
                // A disk may take its time, and the server has but one thread.
                Piece::Coming(tokio::task::spawn_blocking(move || file::read(&file, range).map(Bytes::from)))
            }
            _ => Piece::Here(self.memory.begin(range.start - self.file_len()..range.end - self.file_len())),
        }
    }
}

/// Bytes that are sent next.
#[derive(Debug)]
enum Piece {
    Here(io::Result<Bytes>),
    Coming(JoinHandle<io::Result<Bytes>>),
}

/// A response's body, read from the disk as fast as it is sent.
#[derive(Debug)]
struct Reading {
    content: RecordingBytes,
    left: Range<u64>,
    piece: Option<Piece>,
    /// Whether what was sent before an error has had its time to leave.
    is_cut_off: bool,
}

impl http_body::Body for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.piece.take().unwrap_or_else(|| self.content.begin(&self.left));
        let bytes = match piece {
            Piece::Here(bytes) => bytes,
            Piece::Coming(mut reading) => match Pin::new(&mut reading).poll(context) {
                Poll::Pending => {
                    self.piece = Some(Piece::Coming(reading));
                    return Poll::Pending;
                }
                Poll::Ready(read) => read.unwrap_or_else(|stopped| Err(io::Error::other(stopped))),
            },
        };
        if bytes.is_err() && !std::mem::replace(&mut self.is_cut_off, true) {
            // An error ends the connection at once, with all that waits to be sent there.
            self.piece = Some(Piece::Here(bytes));
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Whoever is sent an error is cut off, so that nobody takes a part for the whole.
        self.left.start = bytes.as_ref().map_or(self.left.end, |bytes| self.left.start + bytes.len() as u64);
        Poll::Ready(Some(bytes.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.end - self.left.start)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Everything,
    Part(Range<u64>),
    /// Bytes that there are not.
    Nothing,
}

/// Reads a `Range` header (RFC 9110, 14.1.2). One of several ranges, or in other units, may be taken as if it were not there, and so it is.
fn asked(header: &str, len: u64) -> Asked {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Digits alone fail for being too many, and then there is nothing that far.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let range = header.split_once('=').filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = range.and_then(|(_, range)| range.trim().split_once('-')) else {
        return Asked::Everything;
    };
    let range = match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) => len.saturating_sub(count)..len,
        (_, Some(first), "", _) => first..len,
        (_, Some(first), _, Some(last)) if first <= last => first..last.saturating_add(1).min(len),
        _ => return Asked::Everything,
    };
    if range.is_empty() { Asked::Nothing } else { Asked::Part(range) }
}

/// Answers a request for a recording, or for the range of it that a header names.
pub(super) fn answer(content: &RecordingBytes, range: Option<&HeaderValue>) -> Response {
    let len = content.len();
    let range = range.and_then(|range| range.to_str().ok());
    let asked = range.map_or(Asked::Everything, |range| asked(range, len));
    let common = [(header::CONTENT_TYPE, MEDIA_TYPE), (header::ACCEPT_RANGES, "bytes")];
    match asked {
        Asked::Everything => (common, content.body(0..len)).into_response(),
        Asked::Part(range) => {
            let place = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            (StatusCode::PARTIAL_CONTENT, common, [(header::CONTENT_RANGE, place)], content.body(range)).into_response()
        }
        Asked::Nothing => {
            (StatusCode::RANGE_NOT_SATISFIABLE, common, [(header::CONTENT_RANGE, format!("bytes */{len}"))])
                .into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        let check = |header: &str, expected: Asked| assert_eq!(asked(header, 100), expected, "{header}");
        check("bytes=0-9", Asked::Part(0..10));
        check("bytes=99-99", Asked::Part(99..100));
        check("bytes=90-", Asked::Part(90..100));
        check("bytes=90-1000", Asked::Part(90..100));
        check("bytes=0-18446744073709551615", Asked::Part(0..100));
        check("bytes=-10", Asked::Part(90..100));
        check("bytes=-1000", Asked::Part(0..100));
        check("Bytes=0-9", Asked::Part(0..10));
        check("bytes=90-99999999999999999999", Asked::Part(90..100));
        check("bytes=-99999999999999999999", Asked::Part(0..100));
        check("bytes=99999999999999999999-", Asked::Nothing);
        check("bytes=100-", Asked::Nothing);
        check("bytes=100-200", Asked::Nothing);
        check("bytes=-0", Asked::Nothing);
        for header in
            ["", "bytes", "bytes=", "bytes=-", "bytes=9-5", "bytes=0-1,5-6", "lines=0-9", "bytes=+1-2", "bytes=a-b"]
        {
            check(header, Asked::Everything);
        }
        assert_eq!(asked("bytes=0-", 0), Asked::Nothing);
    }
}
