//! The queue between the recorder and the thread that writes the file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vramscope_trace::Chunk;

/// Factor by which a sync of the disk may take longer than a write. A sync also waits for other
/// files that are being written to the disk, such as a checkpoint.
const SYNC_PATIENCE_FACTOR: u32 = 6;

/// The chunks that wait to be written to a recording's file, and progress and failure of the thread
/// that writes them.
#[derive(Default)]
pub(super) struct QueueState {
    /// The file is being opened.
    pub(super) is_opening: bool,
    /// The file is open, and its earlier content is being removed.
    pub(super) is_clearing: bool,
    /// The file opened again for reading, if it is a regular file that keeps everything.
    pub(super) reader: Option<Arc<Mutex<File>>>,
    pub(super) waiting: VecDeque<Arc<Chunk>>,
    pub(super) waiting_bytes: usize,
    /// A chunk is being written.
    pub(super) is_writing: bool,
    /// No more chunks will be appended.
    pub(super) is_closed: bool,
    /// The thread has ended, or callers no longer wait for it.
    pub(super) is_ended: bool,
    pub(super) failed: Option<io::Error>,
    /// Number of writes so far.
    pub(super) written: u64,
    /// Number of times that a sync of the disk has begun or ended: odd during a sync.
    pub(super) syncs: Arc<AtomicU64>,
    /// Size of the file.
    pub(super) bytes: u64,
    /// A full state is needed next.
    pub(super) wants_state: bool,
}

/// State that the recorder and the thread that writes the file share: the queue of chunks, and its
/// limits in bytes and time.
pub(super) struct FileQueue {
    pub(super) state: Mutex<QueueState>,
    /// Notified at every change of `state`.
    pub(super) changed: Condvar,
    pub(super) queue_bytes: usize,
    pub(super) patience: Duration,
}

impl FileQueue {
    /// Creates the queue of a file that is being opened.
    pub(super) fn new(queue_bytes: usize, patience: Duration) -> Self {
        let state = QueueState { is_opening: true, ..QueueState::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), queue_bytes, patience }
    }

    /// Marks the file as open, with earlier content. `reader` is the file opened again for reading.
    /// Returns false if the caller no longer waits for the file, which then stays as it is.
    #[must_use]
    pub(super) fn begin_clearing(&self, reader: Option<File>) -> bool {
        let mut state = self.lock();
        if state.is_ended {
            return false;
        }
        (state.is_opening, state.is_clearing) = (false, true);
        state.reader = reader.map(|reader| Arc::new(Mutex::new(reader)));
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Marks the file as open and empty.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        (state.is_opening, state.is_clearing) = (false, false);
        drop(state);
        self.changed.notify_all();
    }

    /// Blocks until the file is open and empty, or an error has ended it. A file that cannot be
    /// opened within `patience` ends with an error. One that cannot be emptied in this time is
    /// open nevertheless.
    pub(super) fn wait_until_open(&self) {
        let state = self.wait_while(|state| state.is_opening);
        let is_clearing = |state: &mut QueueState| state.is_clearing && !state.is_ended;
        drop(self.changed.wait_timeout_while(state, self.patience, is_clearing));
    }

    /// Locks the state, also after a thread that held the lock has panicked.
    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code under the lock can panic, so the state is consistent even if a thread died.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while `must_wait` returns true and the file has not ended, and returns the locked
    /// state. If the file is not opened, or no write completes, within the queue's time limit,
    /// `patience`, ends the file with an error. A sync of the disk may take
    /// [`SYNC_PATIENCE_FACTOR`] times as long.
    pub(super) fn wait_while(&self, must_wait: impl Fn(&QueueState) -> bool) -> MutexGuard<'_, QueueState> {
        let mut state = self.lock();
        let (mut last_progress, mut sync_waits) = (state.progress(), 0);
        while must_wait(&state) && !state.is_ended {
            let written = state.written;
            let is_stuck = |state: &mut QueueState| must_wait(state) && !state.is_ended && state.written == written;
            let waited = self.changed.wait_timeout_while(state, self.patience, is_stuck);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            let progress = state.progress();
            if progress != last_progress {
                (last_progress, sync_waits) = (progress, 0);
            } else if state.is_syncing() && sync_waits + 1 < SYNC_PATIENCE_FACTOR {
                sync_waits += 1;
            } else if timeout.timed_out() && must_wait(&state) {
                let seconds = self.patience.as_secs_f64();
                let reason = if state.is_opening { "it could not be opened" } else { "no data could be written" };
                state.fail(io::Error::new(io::ErrorKind::TimedOut, format!("{reason} for {seconds:.0} s")));
            }
        }
        state
    }
}

impl QueueState {
    /// Returns numbers that change whenever a write completes, or a sync begins or ends.
    fn progress(&self) -> (u64, u64) {
        (self.written, self.syncs.load(Ordering::Relaxed))
    }

    /// Returns true while the writing thread waits for the disk to sync a replacement.
    fn is_syncing(&self) -> bool {
        self.syncs.load(Ordering::Relaxed) % 2 == 1
    }

    /// Ends the file with `error`, unless an earlier error is stored, and discards the waiting
    /// chunks.
    pub(super) fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
        self.is_ended = true;
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }
}
