//! The queue of objects that wait to be stored in the object store, limited in bytes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::layout::Table;
use super::manifest::{RankEntry, TablePartEntry};
use super::recording_parts::RecordingPart;
use super::spool::SpooledObject;

/// An object that waits to be stored, and its entry for the manifest.
#[derive(Debug)]
pub(crate) enum Upload {
    /// A part of a process's recording. The entry of the process has an empty list of parts.
    Recording(RankEntry, RecordingPart),
    /// A part of a table.
    Table(Table, SpooledObject, TablePartEntry),
}

impl Upload {
    /// Returns the object.
    pub(crate) fn object(&mut self) -> &mut SpooledObject {
        match self {
            Self::Recording(_, part) => &mut part.object,
            Self::Table(_, object, _) => object,
        }
    }

    /// Returns the size of the object in bytes.
    fn len(&self) -> u64 {
        match self {
            Self::Recording(_, part) => part.object.len,
            Self::Table(_, object, _) => object.len,
        }
    }
}

/// The waiting objects of an [`UploadQueue`], and the number of lost ones.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Upload>,
    waiting_bytes: u64,
    /// Number of objects that did not fit into the queue or could not be written.
    lost: u64,
    /// True if the last object did not fit, so that each period of loss is logged once.
    is_full: bool,
    /// True once no further objects come.
    is_closed: bool,
}

/// The queue of objects that wait for the object store.
#[derive(Debug)]
pub(crate) struct UploadQueue {
    queue: Mutex<Queue>,
    /// Maximum total size of the waiting objects, in bytes.
    limit: u64,
    /// Notified when an object is added or the queue is closed.
    changed: Notify,
}

impl UploadQueue {
    /// Creates an empty queue that holds at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { queue: Mutex::default(), limit, changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object; drops and counts it if it does not fit. Returns true if it was added.
    pub(crate) fn add(&self, upload: Upload) -> bool {
        let mut queue = self.lock();
        let len = upload.len();
        if queue.is_closed || queue.waiting_bytes + len > self.limit {
            queue.lost += 1;
            if !std::mem::replace(&mut queue.is_full, true) {
                tracing::warn!("the archive's store is too slow or cannot be reached; parts of the archive are lost");
            }
            return false;
        }
        queue.is_full = false;
        queue.waiting_bytes += len;
        queue.waiting.push_back(upload);
        self.changed.notify_one();
        true
    }

    /// Counts objects that were lost before they could be added.
    pub(crate) fn count_lost(&self, objects: u64) {
        self.lock().lost += objects;
    }

    /// Returns how many objects were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Returns how many objects wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Removes and returns the first object. Its bytes still count toward the limit until
    /// [`release`](Self::release).
    pub(crate) fn take(&self) -> Option<Upload> {
        self.lock().waiting.pop_front()
    }

    /// Subtracts the size of an object that was taken, `len` bytes, from the size of the queue.
    pub(crate) fn release(&self, len: u64) {
        self.lock().waiting_bytes -= len;
    }

    /// Accepts no further objects.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Returns true once the queue accepts no further objects.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits until an object is added or the queue is closed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
