//! The hub's history as the bytes of one recording, for downloads with ranges.

use std::sync::Arc;

use vramscope_trace::Chunk;

use super::state::Hub;

/// The history's chunks at one moment as one sequence of bytes, for downloads. It keeps no chunks
/// in memory: bytes of a chunk that is dropped later cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct HistoryView {
    hub: Hub,
    /// Number of header and definition chunks at the start.
    permanent: usize,
    /// Bytes of those chunks.
    permanent_bytes: u64,
    /// Byte offset, in all chunks ever published, at which the other chunks begin.
    begin: u64,
    /// Size of the view in bytes.
    len: u64,
    /// Number of the first of the other chunks.
    first: u64,
    /// Number of the chunk after the last.
    end: u64,
}

impl HistoryView {
    /// Returns the view's size in bytes, including chunks that the hub has dropped since.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of the view's first chunk after the kept header and definitions, and the
    /// number after its last. Views with equal numbers have equal bytes.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.first, self.end)
    }

    /// Returns the chunk that holds the view's byte `at`, and the byte's offset in that chunk.
    /// `None` if the hub has dropped the chunk.
    pub(crate) fn chunk_at(&self, at: u64) -> Option<(Arc<Chunk>, usize)> {
        let history = self.hub.0.lock();
        let (entry, before) = if at < self.permanent_bytes {
            history.permanent_at(at, self.permanent)?
        } else {
            history.chunk_at(self.begin + (at - self.permanent_bytes))?
        };
        Some((Arc::clone(&entry.chunk), usize::try_from(before).ok()?))
    }
}

impl Hub {
    /// Returns the history as bytes: at this moment if `version` is `None`, otherwise as of an
    /// earlier [version](HistoryView::version). `None` if part of that version has been dropped.
    pub(crate) fn history_view(&self, version: Option<(u64, u64)>) -> Option<HistoryView> {
        let history = self.0.lock();
        let first = history.first();
        let (requested_first, end) = version.unwrap_or((first, history.end));
        if requested_first != first || !(first..=history.end).contains(&end) {
            return None;
        }
        let (permanent, permanent_bytes) = history.permanent_size();
        let (begin, until) = (history.bytes_before(first), history.bytes_before(end));
        drop(history);
        let len = permanent_bytes + until - begin;
        Some(HistoryView { hub: self.clone(), permanent, permanent_bytes, begin, len, first, end })
    }
}
