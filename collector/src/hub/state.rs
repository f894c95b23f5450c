//! The hub's state: history, totals and file of a live recording.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramscope_trace::Chunk;

use super::chunk_count::ChunkCount;
use super::file_sync::{FileHubSync, SyncPoint};
use super::history::History;
use super::position::Identity;
use crate::figures::Figures;
use crate::file::FileView;

/// Default limit of the history, in bytes: 256 MiB. An event takes four to ten bytes.
const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
/// Default limit for a viewer's lag, above its smallest lag so far, in bytes: 8 MiB, about a minute
/// of a busy program.
const DEFAULT_LAG_BYTES: u64 = 8 << 20;

/// Limits of a [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubLimits {
    /// Maximum bytes of chunks to keep. Definitions, and the chunks since the newest full state,
    /// are kept in any case.
    pub history_bytes: u64,
    /// Bytes that a viewer may fall behind before it continues at the newest full state.
    pub lag_bytes: u64,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { history_bytes: DEFAULT_HISTORY_BYTES, lag_bytes: DEFAULT_LAG_BYTES }
    }
}

/// What clones of a hub share.
pub(super) struct HubState {
    pub(super) identity: Identity,
    pub(super) limits: HubLimits,
    pub(super) history: Mutex<History>,
    pub(super) published: ChunkCount,
    pub(super) figures: Mutex<Arc<Figures>>,
    /// Events that slow viewers skipped.
    pub(super) missed: AtomicU64,
    pub(super) viewers: AtomicUsize,
}

impl HubState {
    /// Locks the history, also after a thread that held the lock has panicked.
    pub(super) fn lock(&self) -> MutexGuard<'_, History> {
        // Chunks are pushed last under the lock, so the history is consistent after a panic.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds one live recording and serves it to viewers. Clones share the recording.
///
/// ```
/// use vramscope_collector::{Begin, Hub, Outputs, Recorder};
/// use vramscope_trace::RecordingInfo;
///
/// let hub = Hub::default();
/// let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
/// let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs)?;
/// let mut viewer = hub.viewer(Begin::Oldest);
/// # drop(handle);
/// recorder.stop();
/// assert!(!viewer.take(1 << 20).chunks.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Hub(pub(super) Arc<HubState>);

impl Default for Hub {
    fn default() -> Self {
        Self::new(HubLimits::default())
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (identity, limits) = (self.0.identity, &self.0.limits);
        f.debug_struct("Hub").field("identity", &identity).field("limits", limits).finish_non_exhaustive()
    }
}

impl Hub {
    /// Creates a hub for a new recording.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        let (history, published, figures) = (Mutex::default(), ChunkCount::default(), Mutex::default());
        let (identity, missed, viewers) = (Identity::random(), AtomicU64::new(0), AtomicUsize::new(0));
        Self(Arc::new(HubState { identity, limits, history, published, figures, missed, viewers }))
    }

    /// Returns the recording's identity.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Adds the recording's next chunks. Never waits for a viewer.
    pub fn publish(&self, chunks: &[Arc<Chunk>]) {
        let mut history = self.0.lock();
        for chunk in chunks {
            history.push(Arc::clone(chunk));
        }
        let needed = history.needed();
        history.trim(self.0.limits.history_bytes, needed);
        let end = history.end;
        drop(history);
        self.0.published.advance(end);
    }

    /// Sets the file to which the whole recording is also written, so that viewers can read what
    /// the hub has dropped.
    pub(crate) fn set_file(&self, view: FileView) {
        self.0.lock().file_sync = Some(FileHubSync::new(view));
    }

    /// Notes that the recorder has written more to the file. `offset` is the file's size in bytes
    /// if it now contains the same events as all published chunks, otherwise `None`.
    pub(crate) fn sync_file(&self, offset: Option<u64>) {
        let mut history = self.0.lock();
        let chunk = history.end;
        if let Some(file_sync) = &mut history.file_sync {
            file_sync.advance(offset.map(|offset| SyncPoint { offset, chunk }));
        }
    }

    /// Notes that the file has ended before the recording, for example because it could not be
    /// written.
    pub(crate) fn file_ended(&self) {
        if let Some(file_sync) = &mut self.0.lock().file_sync {
            file_sync.has_ended = true;
        }
    }

    /// Stops using the file, because it cannot be read or has been changed. Viewers then get the
    /// history in memory.
    pub(super) fn drop_file(&self) {
        self.0.lock().file_sync = None;
    }

    /// Returns a reader of the file with the whole recording so far; `None` if there is no such
    /// file.
    #[cfg(feature = "server")]
    pub(crate) fn file(&self) -> Option<FileView> {
        let history = self.0.lock();
        history.file_sync.as_ref().filter(|file_sync| !file_sync.has_ended).map(|file_sync| file_sync.view.clone())
    }

    /// Marks the recording as ended.
    pub fn end(&self) {
        self.0.published.finish();
    }

    /// Returns true if the recording has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.published.is_finished()
    }

    /// Returns true if there is a viewer.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.viewers() > 0
    }

    /// Returns the number of viewers.
    #[must_use]
    pub fn viewers(&self) -> usize {
        self.0.viewers.load(Ordering::Relaxed)
    }

    /// Returns the number of events that slow viewers skipped, in total.
    #[must_use]
    pub fn missed_events(&self) -> u64 {
        self.0.missed.load(Ordering::Relaxed)
    }

    /// Adds events that a slow viewer has skipped to [`missed_events`](Self::missed_events).
    pub(super) fn add_missed(&self, events: u64) {
        self.0.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Returns the memory that the history takes, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.lock().held_bytes()
    }

    /// Returns the recording's current totals.
    #[must_use]
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.0.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the recording's current totals.
    pub fn set_figures(&self, figures: Figures) {
        *self.0.figures.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(figures);
    }

    /// Returns all chunks of the history; together they are a valid recording.
    #[must_use]
    pub fn everything(&self) -> Vec<Arc<Chunk>> {
        self.0.lock().all().map(|entry| Arc::clone(&entry.chunk)).collect()
    }
}
