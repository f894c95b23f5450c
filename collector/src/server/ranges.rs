//! Responses with a recording or a byte range of it, from memory, a file or another source.

use std::fmt;
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
use vramscope_trace::{Chunk, ReadAt};

use crate::file::{self, FileView};
use crate::hub::HistoryView;

/// The media type (MIME) of a recording.
pub const MEDIA_TYPE: &str = "application/vnd.vramscope.trace";
/// The most bytes of a file that are read at once for one response.
const PIECE_BYTES: u64 = 256 << 10;
/// The most bytes of another source, such as an object store, that are read in one request. It is
/// larger than [`PIECE_BYTES`], because each request takes tens of milliseconds.
const SOURCE_PIECE_BYTES: u64 = 4 << 20;

/// The bytes of a recording: the first part of a file or other source, then bytes in memory. Either
/// may be empty.
///
/// A file or other source is read while a response is sent, not before.
#[derive(Clone, Debug, Default)]
pub struct RecordingBytes {
    stored: Option<(StoredBytes, u64)>,
    memory: MemoryBytes,
}

/// The part of a recording that is read when it is needed.
#[derive(Clone)]
enum StoredBytes {
    File(Arc<Mutex<File>>),
    Source(Arc<dyn ReadAt>),
}

impl fmt::Debug for StoredBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Source(_) => "Source",
        })
    }
}

impl StoredBytes {
    /// Returns the first piece of `range`, which is read at once.
    fn first_piece(&self, range: Range<u64>) -> Range<u64> {
        let len = match self {
            Self::File(_) => PIECE_BYTES,
            Self::Source(_) => SOURCE_PIECE_BYTES,
        };
        range.start..range.end.min(range.start + len)
    }

    /// Returns the bytes in `range`, which must be stored. Blocks for the disk or the network.
    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match self {
            Self::File(file) => file::read(file, range),
            Self::Source(source) => source.read_at(range),
        }
        .map(Bytes::from)
    }
}

/// The part of a recording that is read from memory.
#[derive(Clone, Debug)]
enum MemoryBytes {
    Bytes(Bytes),
    /// Chunks that a hub holds, until the hub drops them.
    History(HistoryView),
}

impl Default for MemoryBytes {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl MemoryBytes {
    /// Returns the number of bytes.
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::History(held) => held.len(),
        }
    }

    /// Returns at least one byte from the beginning of `range`, and at most all of it. Offsets are
    /// relative to this part. The range must not be empty.
    fn first_piece(&self, range: Range<u64>) -> io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Self::History(held) => {
                let (chunk, offset) = held.chunk_at(range.start).ok_or(io::ErrorKind::NotFound)?;
                let bytes = Bytes::from_owner(ChunkBytes(chunk)).slice(offset..);
                let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                Ok(bytes.slice(..bytes.len().min(len)))
            }
        }
    }
}

/// A chunk's bytes as a slice that responses to many viewers share without copies.
pub(super) struct ChunkBytes(pub(super) Arc<Chunk>);

impl AsRef<[u8]> for ChunkBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl RecordingBytes {
    /// Creates a recording from the first `len` bytes of a file, followed by `appended`.
    #[must_use]
    pub fn from_file(file: File, len: u64, appended: Vec<u8>) -> Self {
        let stored = StoredBytes::File(Arc::new(Mutex::new(file)));
        Self { stored: Some((stored, len)), memory: MemoryBytes::Bytes(appended.into()) }
    }

    /// Creates a recording of `len` bytes that are read from a source, such as an object store.
    /// Each range is read on a thread that may block.
    #[must_use]
    pub fn from_source(source: Arc<dyn ReadAt>, len: u64) -> Self {
        Self { stored: Some((StoredBytes::Source(source), len)), memory: MemoryBytes::default() }
    }

    /// Creates a recording from bytes in memory.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self { stored: None, memory: MemoryBytes::Bytes(bytes.into()) }
    }

    /// Creates a recording from the first `len` bytes of a file that is still written to.
    pub(super) fn from_view(view: &FileView, len: u64) -> Self {
        Self { stored: Some((StoredBytes::File(view.file()), len)), memory: MemoryBytes::default() }
    }

    /// Creates a recording from the chunks that a hub holds.
    pub(super) fn from_history(history: HistoryView) -> Self {
        Self { stored: None, memory: MemoryBytes::History(history) }
    }

    /// Returns the number of bytes that come from the file or source; 0 without one.
    fn stored_len(&self) -> u64 {
        self.stored.as_ref().map_or(0, |(_, len)| *len)
    }

    /// Returns the recording's size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stored_len() + self.memory.len()
    }

    /// Returns true if the recording has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a response body with the recording's bytes from `range.start` to before `range.end`.
    fn body(&self, range: Range<u64>) -> Body {
        Body::new(RangeBody { content: self.clone(), remaining: range, piece: None, has_flushed: false })
    }

    /// Starts to read at least one byte from the beginning of `range`, a non-empty range of byte
    /// offsets in the recording.
    fn first_piece(&self, range: &Range<u64>) -> Piece {
        match &self.stored {
            Some((stored, len)) if range.start < *len => {
                let (stored, range) = (stored.clone(), stored.first_piece(range.start..range.end.min(*len)));
                // Reading may wait for a disk or a network, so it runs on a blocking thread.
                Piece::Reading(tokio::task::spawn_blocking(move || stored.read(range)))
            }
            _ => Piece::Ready(self.memory.first_piece(range.start - self.stored_len()..range.end - self.stored_len())),
        }
    }
}

/// The next bytes of a response: ready, or being read from the file or source.
#[derive(Debug)]
enum Piece {
    Ready(io::Result<Bytes>),
    Reading(JoinHandle<io::Result<Bytes>>),
}

/// A response body that reads the recording only as fast as the client receives.
#[derive(Debug)]
struct RangeBody {
    content: RecordingBytes,
    remaining: Range<u64>,
    piece: Option<Piece>,
    /// True after the poll that lets the connection send the bytes before a read error.
    has_flushed: bool,
}

impl http_body::Body for RangeBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.remaining.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.piece.take().unwrap_or_else(|| self.content.first_piece(&self.remaining));
        let bytes = match piece {
            Piece::Ready(bytes) => bytes,
            Piece::Reading(mut reading) => match Pin::new(&mut reading).poll(context) {
                Poll::Pending => {
                    self.piece = Some(Piece::Reading(reading));
                    return Poll::Pending;
                }
                Poll::Ready(read) => read.unwrap_or_else(|join_error| Err(io::Error::other(join_error))),
            },
        };
        if bytes.is_err() && !std::mem::replace(&mut self.has_flushed, true) {
            // An error aborts the connection and discards what is still buffered, so the error is
            // returned one poll later.
            self.piece = Some(Piece::Ready(bytes));
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // An error leaves the body shorter than its Content-Length, so that the client notices.
        self.remaining.start =
            bytes.as_ref().map_or(self.remaining.end, |bytes| self.remaining.start + bytes.len() as u64);
        Poll::Ready(Some(bytes.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining.end - self.remaining.start)
    }
}

/// The parsed value of a `Range` header: the whole recording, some bytes of it, or bytes that do
/// not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RangeRequest {
    Whole,
    Part(Range<u64>),
    /// No byte of the recording is in the range.
    NotSatisfiable,
}

/// Parses a `Range` header (RFC 9110, 14.1.2) for a recording of `len` bytes. Several ranges, other
/// units and malformed headers select the whole recording, as the RFC permits.
fn parse_range(header: &str, len: u64) -> RangeRequest {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Parsing digits fails on overflow only; the recording is shorter than that.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let range = header.split_once('=').filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = range.and_then(|(_, range)| range.trim().split_once('-')) else {
        return RangeRequest::Whole;
    };
    let range = match (first, number(first), last, number(last)) {
        ("", _, _, Some(count)) => len.saturating_sub(count)..len,
        (_, Some(first), "", _) => first..len,
        (_, Some(first), _, Some(last)) if first <= last => first..last.saturating_add(1).min(len),
        _ => return RangeRequest::Whole,
    };
    if range.is_empty() { RangeRequest::NotSatisfiable } else { RangeRequest::Part(range) }
}

/// Returns the response with a recording, or with the part that the header `range` selects.
pub(super) fn respond(content: &RecordingBytes, range: Option<&HeaderValue>) -> Response {
    let len = content.len();
    let range = range.and_then(|range| range.to_str().ok());
    let selected = range.map_or(RangeRequest::Whole, |range| parse_range(range, len));
    let common = [(header::CONTENT_TYPE, MEDIA_TYPE), (header::ACCEPT_RANGES, "bytes")];
    match selected {
        RangeRequest::Whole => (common, content.body(0..len)).into_response(),
        RangeRequest::Part(range) => {
            let content_range = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            (StatusCode::PARTIAL_CONTENT, common, [(header::CONTENT_RANGE, content_range)], content.body(range))
                .into_response()
        }
        RangeRequest::NotSatisfiable => {
            (StatusCode::RANGE_NOT_SATISFIABLE, common, [(header::CONTENT_RANGE, format!("bytes */{len}"))])
                .into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_headers_are_parsed_as_in_rfc_9110() {
        let check = |header: &str, expected: RangeRequest| assert_eq!(parse_range(header, 100), expected, "{header}");
        check("bytes=0-9", RangeRequest::Part(0..10));
        check("bytes=99-99", RangeRequest::Part(99..100));
        check("bytes=90-", RangeRequest::Part(90..100));
        check("bytes=90-1000", RangeRequest::Part(90..100));
        check("bytes=0-18446744073709551615", RangeRequest::Part(0..100));
        check("bytes=-10", RangeRequest::Part(90..100));
        check("bytes=-1000", RangeRequest::Part(0..100));
        check("Bytes=0-9", RangeRequest::Part(0..10));
        check("bytes=90-99999999999999999999", RangeRequest::Part(90..100));
        check("bytes=-99999999999999999999", RangeRequest::Part(0..100));
        check("bytes=99999999999999999999-", RangeRequest::NotSatisfiable);
        check("bytes=100-", RangeRequest::NotSatisfiable);
        check("bytes=100-200", RangeRequest::NotSatisfiable);
        check("bytes=-0", RangeRequest::NotSatisfiable);
        for header in
            ["", "bytes", "bytes=", "bytes=-", "bytes=9-5", "bytes=0-1,5-6", "lines=0-9", "bytes=+1-2", "bytes=a-b"]
        {
            check(header, RangeRequest::Whole);
        }
        assert_eq!(parse_range("bytes=0-", 0), RangeRequest::NotSatisfiable);
    }
}
