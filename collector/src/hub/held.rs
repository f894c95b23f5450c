//! The hub's history as the bytes of one recording, for downloads with ranges.

use std::sync::Arc;

use vramscope_trace::Chunk;

use super::live::Hub;

/// A byte view of the history at one moment. It keeps no chunks alive, so a slow reader costs
/// nothing; chunks dropped meanwhile cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    hub: Hub,
    /// Number of header and definition chunks before the rest, and their bytes.
    lasting: usize,
    lasting_bytes: u64,
    /// Where the rest begins, in bytes of all chunks ever published.
    begin: u64,
    len: u64,
    /// Chunk numbers of the rest.
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

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns what distinguishes this view from views at other moments.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.first, self.end)
    }

    /// Returns the chunk with the byte at `at`, and the byte's offset in it. `None` if the chunk
    /// has been dropped.
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

impl Hub {
    /// Returns a byte view of the history, either now or at an earlier [version](Held::version).
    /// `None` if part of that has been dropped.
    pub(crate) fn held(&self, version: Option<(u64, u64)>) -> Option<Held> {
        Held::new(self, version)
    }
}
