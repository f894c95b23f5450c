//! What is held, as the bytes of one recording.

use std::sync::Arc;

use vramscope_trace::Chunk;

use super::Hub;

/// Everything that was held at one moment, to be read as bytes. It holds nothing itself: what is dropped meanwhile is gone, so that
/// someone who reads slowly costs nothing.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    hub: Hub,
    /// How many heads and chunks of definitions come before the rest, and how many bytes they have.
    lasting: usize,
    lasting_bytes: u64,
    /// Where the rest begins, in bytes of everything ever published.
    begin: u64,
    len: u64,
    /// The numbers of the rest's chunks.
    first: u64,
    end: u64,
}

impl Held {
    pub(super) fn new(hub: &Hub, until: Option<(u64, u64)>) -> Option<Self> {
        let history = hub.0.lock();
        let first = history.first();
        let (asked, end) = until.unwrap_or((first, history.end));
        if asked != first || !(first..=history.end).contains(&end) {
            return None;
        }
        let (lasting, lasting_bytes) = history.lasting();
        let (begin, until) = (history.bytes_before(first), history.bytes_before(end));
        drop(history);
        let len = lasting_bytes + until - begin;
        Some(Self { hub: hub.clone(), lasting, lasting_bytes, begin, len, first, end })
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What tells it from what was, or will be, held at other moments.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.first, self.end)
    }

    /// The chunk in which the byte at a place stands, and where in it; `None` where it is no longer held.
    pub(crate) fn chunk_at(&self, at: u64) -> Option<(Arc<Chunk>, usize)> {
        let history = self.hub.0.lock();
        let (entry, before) = if at < self.lasting_bytes {
            history.lasting_at(at, self.lasting)?
        } else {
            history.chunk_at(self.begin + (at - self.lasting_bytes))?
        };
        Some((Arc::clone(&entry.chunk), usize::try_from(before).ok()?))
    }
}
