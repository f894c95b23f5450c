//! The queue between the recorder and the thread that writes the file.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vramscope_trace::Chunk;

/// The chunks that wait to be written to a recording's file, and progress and failure of the thread
/// that writes them.
#[derive(Default)]
pub(super) struct QueueState {
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
    /// Locks the state, also after a thread that held the lock has panicked.
    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No code under the lock can panic, so the state is consistent even if a thread died.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while `must_wait` returns true and the file has not ended, and returns the locked
    /// state. If no write completes within the queue's time limit, `patience`, ends the file with
    /// an error.
    pub(super) fn wait_while(&self, must_wait: impl Fn(&QueueState) -> bool) -> MutexGuard<'_, QueueState> {
        let mut state = self.lock();
        while must_wait(&state) && !state.is_ended {
            let written = state.written;
            let is_stuck = |state: &mut QueueState| must_wait(state) && !state.is_ended && state.written == written;
            let waited = self.changed.wait_timeout_while(state, self.patience, is_stuck);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            if timeout.timed_out() && must_wait(&state) && state.written == written {
                let seconds = self.patience.as_secs_f64();
                let error =
                    io::Error::new(io::ErrorKind::TimedOut, format!("no data could be written for {seconds:.0} s"));
                state.fail(error);
            }
        }
        state
    }
}

impl QueueState {
    /// Ends the file with `error`, unless an earlier error is stored, and discards the waiting
    /// chunks.
    pub(super) fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
        self.is_ended = true;
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }
}
