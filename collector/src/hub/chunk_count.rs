//! The number of published chunks, and waiting for more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_listener::{Event, Listener};

/// The number of published chunks, and whether the recording has finished.
#[derive(Debug, Default)]
pub(super) struct ChunkCount {
    chunks: AtomicU64,
    is_finished: AtomicBool,
    changed: Event,
}

impl ChunkCount {
    /// Sets the number of chunks published so far and wakes all waiting viewers.
    pub(super) fn advance(&self, chunks: u64) {
        self.chunks.store(chunks, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Marks the recording as finished and wakes all waiting viewers.
    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Returns true once nothing more will be published.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// Returns true if there are more than `seen` chunks, false if the recording finished without
    /// them, and `None` if they may still come.
    fn has_more(&self, seen: u64) -> Option<bool> {
        // Read before the count, so that chunks published before the end are never missed.
        let is_finished = self.is_finished();
        if self.chunks.load(Ordering::Acquire) > seen { Some(true) } else { is_finished.then_some(false) }
    }

    /// Waits for more than `seen` chunks. Returns false if the recording finished without them.
    pub(super) async fn wait(&self, seen: u64) -> bool {
        loop {
            if let Some(has_more) = self.has_more(seen) {
                return has_more;
            }
            let changed = self.changed.listen();
            // A change before `listen` causes no wake-up, so check again.
            if let Some(has_more) = self.has_more(seen) {
                return has_more;
            }
            changed.await;
        }
    }

    /// Blocks until there are more than `seen` chunks (returns true), the recording has finished
    /// without them (false), or `timeout` has passed (`None`).
    pub(super) fn wait_timeout(&self, seen: u64, timeout: Duration) -> Option<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(has_more) = self.has_more(seen) {
                return Some(has_more);
            }
            let changed = self.changed.listen();
            if let Some(has_more) = self.has_more(seen) {
                return Some(has_more);
            }
            changed.wait_deadline(deadline)?;
        }
    }
}
