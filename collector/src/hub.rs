//! The hub: hands a recording's chunks to any number of viewers.
//!
//! The newest chunks are held in memory, up to a number of bytes. A [`Viewer`] is a place in that history and owns no queue of its
//! own, so a slow one costs nothing and holds nobody up. One that comes late begins with the oldest chunk held; one that falls
//! too far behind goes on from the newest full state. Definitions are never left out, whatever else is, so that what a viewer was
//! sent is a valid recording at any time: it says itself which events are missing.
//!
//! When the history outgrows its bytes the oldest chunks are dropped, up to a full state, from which a newcomer can begin.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use vramscope_trace::{Chunk, ChunkKind};

use crate::figures::Figures;

/// Bytes of history that are held by default. An event takes four to ten.
const DEFAULT_HISTORY_BYTES: u64 = 256 << 20;
/// A viewer may fall behind by this many bytes more than the least it was behind before: about a minute of a busy program, after
/// which what it shows is not live any more.
const DEFAULT_LAG_BYTES: u64 = 8 << 20;

/// What a chunk takes beside its bytes: its entry here, its own fields and those of the allocator. It counts where a quiet program
/// makes many small chunks.
const CHUNK_OVERHEAD: usize = size_of::<Entry>() + size_of::<Chunk>() + 48;

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

/// A chunk and where in the recording it stands.
#[derive(Clone)]
struct Entry {
    /// How many chunks come before it.
    number: u64,
    /// How many bytes of memory the chunks before it take.
    offset: u64,
    chunk: Arc<Chunk>,
}

impl Entry {
    /// Whether everyone must have it, even those who do not get the events around it.
    fn is_lasting(&self) -> bool {
        matches!(self.chunk.kind, ChunkKind::Head | ChunkKind::Definitions)
    }
}

#[derive(Default)]
struct History {
    /// Head and definitions from before `chunks`.
    lasting: Vec<Entry>,
    /// Everything since; begins with the recording's head or with a full state.
    chunks: VecDeque<Entry>,
    /// The number of the newest full state.
    newest_state: Option<u64>,
    /// The number that the next chunk will have.
    end: u64,
    /// Bytes of memory of all chunks ever published.
    end_offset: u64,
}

impl History {
    fn first(&self) -> u64 {
        self.chunks.front().map_or(self.end, |entry| entry.number)
    }

    fn held_bytes(&self) -> u64 {
        self.chunks.front().map_or(0, |entry| self.end_offset - entry.offset)
    }

    fn push(&mut self, chunk: Arc<Chunk>) {
        let offset = self.end_offset;
        if chunk.kind == ChunkKind::State {
            self.newest_state = Some(self.end);
        }
        self.end_offset += (chunk.bytes.len() + CHUNK_OVERHEAD) as u64;
        self.chunks.push_back(Entry { number: self.end, offset, chunk });
        self.end += 1;
    }

    fn trim(&mut self, limit: u64) {
        // The newest state stays, for it is what everything can begin from.
        while self.held_bytes() > limit && self.newest_state.is_some_and(|newest| newest > self.first()) {
            while let Some(entry) = self.chunks.pop_front() {
                if entry.is_lasting() {
                    self.lasting.push(entry);
                }
                if self.chunks.front().is_some_and(|next| next.chunk.kind == ChunkKind::State) {
                    break;
                }
            }
        }
    }

    /// The chunks from number `from` on that are held.
    fn held_from(&self, from: u64) -> impl Iterator<Item = &Entry> {
        let skip = usize::try_from(from.saturating_sub(self.first())).unwrap_or(usize::MAX);
        self.chunks.range(skip.min(self.chunks.len())..)
    }
}

/// Whether there is something new to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tip {
    end: u64,
    ended: bool,
}

struct Shared {
    limits: HubLimits,
    history: Mutex<History>,
    tip: watch::Sender<Tip>,
    figures: Mutex<Arc<Figures>>,
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
        f.debug_struct("Hub").field("limits", &self.0.limits).finish_non_exhaustive()
    }
}

impl Hub {
    /// A hub that nothing was published to.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        let (history, tip, figures) = (Mutex::default(), watch::Sender::default(), Mutex::default());
        Self(Arc::new(Shared { limits, history, tip, figures }))
    }

    /// Takes the recording's next chunks. Never waits for a viewer.
    pub fn publish(&self, chunks: &[Arc<Chunk>]) {
        let mut history = self.0.lock();
        for chunk in chunks {
            history.push(Arc::clone(chunk));
        }
        history.trim(self.0.limits.history_bytes);
        let end = history.end;
        drop(history);
        self.0.tip.send_modify(|tip| tip.end = end);
    }

    /// Says that nothing more will be published.
    pub fn end(&self) {
        self.0.tip.send_modify(|tip| tip.ended = true);
    }

    /// Whether there is any viewer.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        // Nobody else looks at the tip.
        self.0.tip.receiver_count() > 0
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
        let history = self.0.lock();
        history.lasting.iter().chain(&history.chunks).map(|entry| Arc::clone(&entry.chunk)).collect()
    }

    /// A newcomer, to whom everything that is held will be given first.
    #[must_use]
    pub fn viewer(&self) -> Viewer {
        Viewer { hub: self.clone(), tip: self.0.tip.subscribe(), next: 0, missed: VecDeque::new(), least_lag: u64::MAX }
    }
}

/// A reader of a [`Hub`] at its own pace.
#[derive(Debug)]
pub struct Viewer {
    hub: Hub,
    tip: watch::Receiver<Tip>,
    /// The number of the next chunk.
    next: u64,
    /// Definitions from before `next` that it must have first.
    missed: VecDeque<Arc<Chunk>>,
    /// The least number of bytes that it was ever behind.
    least_lag: u64,
}

impl Viewer {
    /// The next chunks: at least one if there is any, and then as many as `max_bytes` has room for.
    pub fn take(&mut self, max_bytes: usize) -> Vec<Arc<Chunk>> {
        let shared = Arc::clone(&self.hub.0);
        let history = shared.lock();
        if self.missed.is_empty()
            && let Some(target) = self.moved_on(&history)
        {
            let passed = history.lasting.iter().chain(&history.chunks);
            let missed = passed.filter(|entry| (self.next..target).contains(&entry.number) && entry.is_lasting());
            self.missed = missed.map(|entry| Arc::clone(&entry.chunk)).collect();
            self.next = target;
            self.least_lag = u64::MAX;
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        let mut has_room = |chunk: &Chunk| {
            let is_first = bytes == 0;
            bytes += chunk.bytes.len();
            is_first || bytes <= max_bytes
        };
        while let Some(chunk) = self.missed.pop_front_if(|chunk| has_room(chunk)) {
            taken.push(chunk);
        }
        if self.missed.is_empty() {
            let fitting = history.held_from(self.next).take_while(|entry| has_room(&entry.chunk));
            taken.extend(fitting.map(|entry| Arc::clone(&entry.chunk)).inspect(|_| self.next += 1));
        }
        taken
    }

    /// The chunk to go on from, if not the next one.
    fn moved_on(&mut self, history: &History) -> Option<u64> {
        let first = history.first();
        if self.next < first {
            // A newcomer gets all that is left, one that was here before what is newest.
            return Some(if self.next == 0 {
                first
            } else {
                history.newest_state.map_or(first, |state| state.max(first))
            });
        }
        let offset = history.held_from(self.next).next().map_or(history.end_offset, |entry| entry.offset);
        let lag = history.end_offset - offset;
        self.least_lag = self.least_lag.min(lag);
        let too_slow = lag - self.least_lag > self.hub.0.limits.lag_bytes;
        history.newest_state.filter(|&state| too_slow && state > self.next)
    }

    /// Waits until there is something to take; `false` if everything was taken and nothing more will come.
    pub async fn wait(&mut self) -> bool {
        let next = self.next;
        // An error says that the hub is gone, which cannot be while this viewer has it.
        self.tip.wait_for(|tip| tip.end > next || tip.ended).await.is_ok_and(|tip| tip.end > next)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
