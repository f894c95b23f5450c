//! The hub: hands a recording's chunks to any number of viewers.
//!
//! The newest chunks are held in memory, up to a number of bytes. A [`Viewer`] is a place in that history and owns no queue of its
//! own, so a slow one costs nothing and holds nobody up. One that comes late [begins](Begin) with the newest full state, or further
//! back if it likes; one that falls too far behind goes on from the newest full state. Definitions are never left out, whatever else
//! is, so that what a viewer was sent is a valid recording at any time: it says itself which events are missing. One that was away
//! [resumes](Hub::resume) where it was.
//!
//! When the history outgrows its bytes the oldest chunks are dropped, up to a full state, from which a newcomer can begin.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use vramscope_trace::Chunk;

use crate::figures::Figures;
use crate::file::FileView;

mod held;
mod history;
mod joint;
mod position;
mod reading;
mod viewer;

pub(crate) use held::Held;
use history::History;
use joint::{Joint, Junction};
pub use position::{Identity, NotAPosition, Position};
pub use viewer::{Begin, Taken, Viewer};

/// Bytes of history that are held by default. An event takes four to ten.
const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
/// A viewer may fall behind by this many bytes more than the least it was behind before: about a minute of a busy program, after
/// which what it shows is not live any more.
const DEFAULT_LAG_BYTES: u64 = 8 << 20;

/// How much a hub holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubLimits {
    /// Bytes of chunks that are held. What has been defined, and the chunks since the newest full state, are held in any case.
    pub history_bytes: u64,
    /// Bytes by which a viewer may fall behind before it is moved on to the newest full state.
    pub lag_bytes: u64,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { history_bytes: DEFAULT_HISTORY_BYTES, lag_bytes: DEFAULT_LAG_BYTES }
    }
}

/// Whether there is something new to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tip {
    end: u64,
    ended: bool,
}

struct Shared {
    identity: Identity,
    limits: HubLimits,
    history: Mutex<History>,
    tip: watch::Sender<Tip>,
    figures: Mutex<Arc<Figures>>,
    missed: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, History> {
        // Whoever panicked under the lock was between two whole chunks: pushing is the last thing that is done with one.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One recording and its viewers. Clones are the same hub.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

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
    /// A hub that nothing was published to.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        let (history, tip, figures) = (Mutex::default(), watch::Sender::default(), Mutex::default());
        let (identity, missed) = (Identity::random(), AtomicU64::new(0));
        Self(Arc::new(Shared { identity, limits, history, tip, figures, missed }))
    }

    /// Which recording it is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Takes the recording's next chunks. Never waits for a viewer.
    pub fn publish(&self, chunks: &[Arc<Chunk>]) {
        let mut history = self.0.lock();
        for chunk in chunks {
            history.push(Arc::clone(chunk));
        }
        let needed = history.needed();
        history.trim(self.0.limits.history_bytes, needed);
        let end = history.end;
        drop(history);
        self.0.tip.send_modify(|tip| tip.end = end);
    }

    /// Says that the recording is written to a file, too, where its whole history is to be had.
    pub(crate) fn set_file(&self, view: FileView) {
        self.0.lock().joint = Some(Joint::new(view));
    }

    /// Notes how far the file is written. `offset` is how many bytes were given to it, if they say the same as all chunks that were
    /// published.
    pub(crate) fn join(&self, offset: Option<u64>) {
        let mut history = self.0.lock();
        let chunk = history.end;
        if let Some(joint) = &mut history.joint {
            joint.advance(offset.map(|offset| Junction { offset, chunk }));
        }
    }

    /// Says that the file has ended before the recording.
    pub(crate) fn file_is_over(&self) {
        if let Some(joint) = &mut self.0.lock().joint {
            joint.is_over = true;
        }
    }

    /// Says that the file cannot be read, or is not what was written: whoever comes is given what is held.
    fn file_is_broken(&self) {
        self.0.lock().joint = None;
    }

    /// The file that the whole recording is in, so far.
    pub(crate) fn file(&self) -> Option<FileView> {
        let history = self.0.lock();
        history.joint.as_ref().filter(|joint| !joint.is_over).map(|joint| joint.view.clone())
    }

    /// Everything that is held now, or was when its [version](Held::version) was another; `None` where some of that is gone.
    pub(crate) fn held(&self, version: Option<(u64, u64)>) -> Option<Held> {
        Held::new(self, version)
    }

    /// Says that nothing more will be published.
    pub fn end(&self) {
        self.0.tip.send_modify(|tip| tip.ended = true);
    }

    /// Whether nothing more will be published.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.tip.borrow().ended
    }

    /// Whether there is any viewer.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.viewers() > 0
    }

    /// How many viewers there are.
    #[must_use]
    pub fn viewers(&self) -> usize {
        // Nobody else looks at the tip.
        self.0.tip.receiver_count()
    }

    /// How many events were left out for viewers that were too slow, all of them together.
    #[must_use]
    pub fn missed_events(&self) -> u64 {
        self.0.missed.load(Ordering::Relaxed)
    }

    fn add_missed(&self, events: u64) {
        self.0.missed.fetch_add(events, Ordering::Relaxed);
    }

    /// Bytes of memory that the recording takes here.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.lock().held_bytes()
    }

    /// What the recording came to so far.
    #[must_use]
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.0.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says what the recording came to so far.
    pub fn set_figures(&self, figures: Figures) {
        *self.0.figures.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(figures);
    }

    /// Everything that is held, as one recording.
    #[must_use]
    pub fn everything(&self) -> Vec<Arc<Chunk>> {
        self.0.lock().all().map(|entry| Arc::clone(&entry.chunk)).collect()
    }

    /// A newcomer, who is given the recording's head and all definitions first.
    #[must_use]
    pub fn viewer(&self, begin: Begin) -> Viewer {
        Viewer::new(self, begin)
    }

    /// One that was here before and goes on with what comes after `at`. Of another recording than this it is a newcomer that begins
    /// with `or`. Where the chunks that it has not taken are no longer held it goes on with the newest full state, and is told how many
    /// events it missed.
    #[must_use]
    pub fn resume(&self, at: Position, or: Begin) -> Viewer {
        Viewer::resume(self, at, or)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
