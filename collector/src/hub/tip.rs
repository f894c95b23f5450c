//! How many chunks a recording has, and waiting for more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_listener::{Event, Listener};

/// The end of a live recording: how many chunks it has, and whether more will come.
#[derive(Debug, Default)]
pub(super) struct Tip {
    chunks: AtomicU64,
    is_finished: AtomicBool,
    changed: Event,
}

impl Tip {
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

    /// Returns whether there are more than `seen` chunks; `None` if more may still come.
    fn has_more(&self, seen: u64) -> Option<bool> {
        // In this order: chunks published before the end are then never missed.
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
            // A change before `listen` wakes nobody: look again.
            if let Some(has_more) = self.has_more(seen) {
                return has_more;
            }
            changed.await;
        }
    }

    /// Blocks as [`wait`](Self::wait), for at most `timeout`; returns `None` when that is over.
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
