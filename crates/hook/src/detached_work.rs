//! Work that may hang forever, for example on a disk, and therefore runs on a thread that no caller
//! joins.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Work that runs on its own thread, with the channel that receives its result.
pub(crate) struct DetachedWork<R>(Receiver<R>);

/// Work whose thread could not be started, for example at the process's limit of threads.
pub(crate) struct NotStarted<W> {
    pub(crate) error: io::Error,
    pub(crate) work: W,
}

/// Why [`DetachedWork::wait`] has no result: no progress in time, or a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoResult {
    #[error("no progress")]
    TimedOut,
    #[error("internal error, please report it")]
    Panicked,
}

impl<R: Send + 'static> DetachedWork<R> {
    /// Starts `work` on a thread.
    ///
    /// # Errors
    /// If the thread cannot be started. The error has the work, for its caller to run.
    pub(crate) fn start<W: FnOnce() -> R + Send + 'static>(builder: Builder, work: W) -> Result<Self, NotStarted<W>> {
        let (finished, result) = sync_channel(1);
        // A thread that cannot be started drops its closure, but not the work.
        let waiting = Arc::new(Mutex::new(Some(work)));
        let take = |waiting: &Mutex<Option<W>>| waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread_waiting = Arc::clone(&waiting);
        let thread = builder.spawn(move || {
            if let Some(work) = take(&thread_waiting) {
                // An error means that the caller has given up.
                let _ = finished.send(work());
            }
        });
        match thread {
            Ok(_) => Ok(Self(result)),
            Err(error) => Err(NotStarted { error, work: take(&waiting).expect("only the thread takes the work") }),
        }
    }

    /// Waits for the result. Gives up once the number that `progress` returns has not changed for
    /// `patience`.
    ///
    /// # Errors
    /// If the number does not change in time, or the work panics.
    pub(crate) fn wait(self, patience: Duration, progress: impl Fn() -> u64) -> Result<R, NoResult> {
        loop {
            let before = progress();
            match self.0.recv_timeout(patience) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if progress() != before => {}
                Err(RecvTimeoutError::Timeout) => return Err(NoResult::TimedOut),
                Err(RecvTimeoutError::Disconnected) => return Err(NoResult::Panicked),
            }
        }
    }
}
