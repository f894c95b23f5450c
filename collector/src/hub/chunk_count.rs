//! The number of published chunks, and waiting for more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_listener::{Event, EventListener, Listener};

/// The number of chunks that a hub has published, and whether more may follow. Wakes viewers that
/// wait for more.
#[derive(Debug, Default)]
pub(super) struct ChunkCount {
    chunks: AtomicU64,
    is_finished: AtomicBool,
    changed: Event,
}

impl ChunkCount {
    /// Sets the total number of chunks published so far and wakes all waiting viewers.
    pub(super) fn advance(&self, chunks: u64) {
        self.chunks.store(chunks, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Records that no more chunks will be published, and wakes all waiting viewers.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Returns true once no more chunks will be published, false while more may come.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// Returns true if more than `seen` chunks have been published, false if the recording finished
    /// with at most `seen`, and `None` if more may still come.
    fn has_more(&self, seen: u64) -> Option<bool> {
        // Read before the count, so that chunks published before the end are never missed.
        let is_finished = self.is_finished();
        if self.chunks.load(Ordering::Acquire) > seen { Some(true) } else { is_finished.then_some(false) }
    }

    /// Returns the result of [`has_more`](Self::has_more); instead of `None`, returns a listener
    /// that waits for the next change.
    fn has_more_or_listen(&self, seen: u64) -> Result<bool, EventListener> {
        if let Some(has_more) = self.has_more(seen) {
            return Ok(has_more);
        }
        let changed = self.changed.listen();
        // A change before `listen` causes no wake-up, so check again.
        self.has_more(seen).ok_or(changed)
    }

    /// Waits until more than `seen` chunks are published (returns true) or the recording finishes
    /// with at most `seen` (returns false).
    pub(super) async fn wait(&self, seen: u64) -> bool {
        loop {
            match self.has_more_or_listen(seen) {
                Ok(has_more) => return has_more,
                Err(changed) => changed.await,
            }
        }
    }

    /// Blocks until more than `seen` chunks are published (returns true), the recording finishes
    /// with at most `seen` (false), or `timeout` has passed (`None`).
    pub(super) fn wait_timeout(&self, seen: u64, timeout: Duration) -> Option<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.has_more_or_listen(seen) {
                Ok(has_more) => return Some(has_more),
                Err(changed) => changed.wait_deadline(deadline)?,
            }
        }
    }
}
