//! The hub's state: history, totals and file of a live recording.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_trace::Chunk;

use super::chunk_count::ChunkCount;
use super::file_sync::{FileHubSync, SyncPoint};
use super::history::History;
use super::position::RecordingIdentity;
use crate::figures::Figures;
use crate::file::FileView;
use crate::wait_check::{CheckedGuard, Wait};

/// Default of [`HubLimits::history_bytes`]: 256 MiB. An event takes four to ten bytes.
const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
/// Default of [`HubLimits::lag_bytes`]: 8 MiB, about a minute of a busy program.
const DEFAULT_LAG_BYTES: u64 = 8 << 20;

/// How much of a recording a [`Hub`] keeps in memory, and how far a viewer may fall behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubLimits {
    /// The most memory for chunks, in bytes; beyond it the oldest are dropped. Definitions, and the
    /// chunks since the newest full state, are kept in any case.
    pub history_bytes: u64,
    /// Bytes that a viewer may fall behind, above its smallest lag so far, before it skips to the
    /// newest full state.
    pub lag_bytes: u64,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { history_bytes: DEFAULT_HISTORY_BYTES, lag_bytes: DEFAULT_LAG_BYTES }
    }
}

/// The state that all clones of a [`Hub`] share: the newest chunks, the recording's [`Figures`],
/// and the numbers of viewers and missed events.
pub(super) struct HubState {
    pub(super) identity: RecordingIdentity,
    pub(super) limits: HubLimits,
    pub(super) history: Mutex<History>,
    pub(super) published: ChunkCount,
    pub(super) figures: Mutex<Arc<Figures>>,
    /// Number of [`FiguresWatch`]es.
    pub(super) figures_watches: AtomicUsize,
    /// Events that slow viewers skipped.
    pub(super) missed: AtomicU64,
    pub(super) viewers: AtomicUsize,
    /// True if names are replaced before they are recorded.
    pub(super) is_redacted: AtomicBool,
}

impl HubState {
    /// Locks the history, also after a thread that held the lock has panicked.
    pub(super) fn lock(&self) -> CheckedGuard<'_, History> {
        Wait::Hub.begin();
        // Chunks are pushed last under the lock, so the history is consistent after a panic.
        CheckedGuard::new(self.history.lock().unwrap_or_else(PoisonError::into_inner), Wait::Network)
    }

    /// Locks the figures, also after a thread that held the lock has panicked.
    fn lock_figures(&self) -> CheckedGuard<'_, Arc<Figures>> {
        Wait::Hub.begin();
        CheckedGuard::new(self.figures.lock().unwrap_or_else(PoisonError::into_inner), Wait::Network)
    }
}

/// Holds the newest part of one live recording in memory and serves it to viewers. Clones share the
/// recording.
///
/// ```
/// use vramscope_collector::{ViewFrom, Hub, Outputs, Recorder};
/// use vramscope_trace::RecordingInfo;
///
/// let hub = Hub::default();
/// let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
/// let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs)?;
/// let mut viewer = hub.viewer(ViewFrom::Oldest);
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
        Self(Arc::new(HubState {
            identity: RecordingIdentity::random(),
            limits,
            history: Mutex::default(),
            published: ChunkCount::default(),
            figures: Mutex::default(),
            figures_watches: AtomicUsize::new(0),
            missed: AtomicU64::new(0),
            viewers: AtomicUsize::new(0),
            is_redacted: AtomicBool::new(false),
        }))
    }

    /// Returns the recording's identity, by which a client that reconnects recognizes the
    /// recording.
    #[must_use]
    pub fn identity(&self) -> RecordingIdentity {
        self.0.identity
    }

    /// Marks the recording as one without names.
    pub(crate) fn set_redacted(&self) {
        self.0.is_redacted.store(true, Ordering::Relaxed);
    }

    /// Returns true if the recording has no names, so that its process must not be described by
    /// names either.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        self.0.is_redacted.load(Ordering::Relaxed)
    }

    /// Appends the recording's next chunks and drops the oldest ones beyond the history's limit.
    /// Never waits for a viewer.
    pub fn publish(&self, chunks: &[Arc<Chunk>]) {
        let _forbidden = Wait::Network.forbid();
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

    /// Updates the point at which viewers switch from the file to the hub, after the recorder has
    /// appended to the file. `offset` is the file's size in bytes if the file now ends with the
    /// same event as the published chunks, otherwise `None`.
    pub(crate) fn sync_file(&self, offset: Option<u64>) {
        let mut history = self.0.lock();
        let chunk = history.end;
        if let Some(file_sync) = &mut history.file_sync {
            file_sync.advance(offset.map(|offset| SyncPoint { offset, chunk }));
        }
    }

    /// Marks the file as ended before the recording, for example because the disk is full. Viewers
    /// may still read the part that was written.
    pub(crate) fn file_ended(&self) {
        if let Some(file_sync) = &mut self.0.lock().file_sync {
            file_sync.has_ended = true;
        }
    }

    /// Stops using the recording's file, because it cannot be read or has been changed. New viewers
    /// then get the history in memory.
    pub(super) fn drop_file(&self) {
        self.0.lock().file_sync = None;
    }

    /// Returns a reader of the file with the whole recording so far; `None` without a file, or if
    /// the file ended before the recording.
    #[cfg(feature = "server")]
    pub(crate) fn file(&self) -> Option<FileView> {
        let history = self.0.lock();
        history.file_sync.as_ref().filter(|file_sync| !file_sync.has_ended).map(|file_sync| file_sync.view.clone())
    }

    /// Marks the recording as ended. Viewers finish once they have taken all published chunks.
    pub fn end(&self) {
        self.0.published.finish();
    }

    /// Returns true once [`end`](Self::end) was called, false while more chunks may be published.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.published.is_finished()
    }

    /// Returns true while at least one viewer exists, otherwise false.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.viewers() > 0
    }

    /// Returns the number of [`Viewer`](super::Viewer)s of this hub that exist now.
    #[must_use]
    pub fn viewers(&self) -> usize {
        self.0.viewers.load(Ordering::Relaxed)
    }

    /// Returns the number of events that slow viewers skipped, summed over all viewers so far.
    #[must_use]
    pub fn missed_events(&self) -> u64 {
        self.0.missed.load(Ordering::Relaxed)
    }

    /// Adds events that a slow viewer has skipped to [`missed_events`](Self::missed_events).
    pub(super) fn add_missed(&self, events: u64) {
        self.0.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Returns the memory that the history takes, in bytes, including an estimated overhead for
    /// each chunk.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.lock().held_bytes()
    }

    /// Returns the recording's current numbers of recorded and lost events, its file size and each
    /// device's memory, as last set by [`set_figures`](Self::set_figures); empty before the first
    /// call.
    #[must_use]
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.0.lock_figures())
    }

    /// Replaces the [`Figures`]: numbers of recorded and lost events, file size and each device's
    /// memory. The recorder calls this about once a second.
    pub fn set_figures(&self, figures: Figures) {
        *self.0.lock_figures() = Arc::new(figures);
    }

    /// Asks the recorder to update the [`Figures`] ten times a second for as long as the result
    /// exists. An update visits every block, so it is less frequent if that takes long.
    #[must_use]
    pub fn watch_figures(&self) -> FiguresWatch {
        self.0.figures_watches.fetch_add(1, Ordering::Relaxed);
        FiguresWatch(self.clone())
    }

    /// Returns true while at least one [`FiguresWatch`] of this hub exists.
    pub(crate) fn has_watched_figures(&self) -> bool {
        self.0.figures_watches.load(Ordering::Relaxed) > 0
    }

    /// Returns the header and all definitions published as chunk number `from` or later, and the
    /// number to continue with.
    #[must_use]
    pub fn definitions_from(&self, from: u64) -> (Vec<Arc<Chunk>>, u64) {
        let history = self.0.lock();
        (history.permanent_from(from).map(|entry| Arc::clone(&entry.chunk)).collect(), history.end)
    }

    /// Returns all chunks that the hub holds, in order; together they are a valid recording of the
    /// newest events.
    #[must_use]
    pub fn everything(&self) -> Vec<Arc<Chunk>> {
        self.0.lock().all().map(|entry| Arc::clone(&entry.chunk)).collect()
    }
}

/// Keeps a hub's [`Figures`] updated ten times a second until it is dropped.
#[derive(Debug)]
pub struct FiguresWatch(Hub);

impl Drop for FiguresWatch {
    fn drop(&mut self) {
        self.0.0.figures_watches.fetch_sub(1, Ordering::Relaxed);
    }
}
