//! The hub's history: the newest chunks of the recording.

use std::collections::VecDeque;
use std::sync::Arc;

use vramscope_trace::{Chunk, ChunkKind};

use super::file_sync::FileHubSync;
use super::position::ViewFrom;

/// Estimated memory of a chunk besides its content, in bytes: its [`ChunkEntry`], its fields and
/// the allocator's overhead. It matters for quiet programs, which make many small chunks.
const CHUNK_OVERHEAD: usize = size_of::<ChunkEntry>() + size_of::<Chunk>() + 48;
/// Number of dropped chunks whose last event number is kept, to count what a resuming viewer
/// missed. It covers about an hour and takes 1 MiB; the oldest numbers are removed first.
const MAX_DROPPED_END_EVENTS: usize = 1 << 16;

/// A chunk in the history, with its number (the recording's first chunk has number 0), its byte
/// offset in the recording, and the number of the last event so far.
#[derive(Clone)]
pub(super) struct ChunkEntry {
    /// Number of chunks before it.
    pub(super) number: u64,
    /// Memory of the chunks before it, in bytes.
    memory_before: u64,
    /// Bytes of the chunks before it. For an entry in `permanent`, counts only the entries in
    /// `permanent` before it.
    bytes_before: u64,
    /// The recording's last event up to and including this chunk.
    end_event: Option<u64>,
    pub(super) chunk: Arc<Chunk>,
}

impl ChunkEntry {
    /// Returns true for a header or definitions, which every viewer needs and the history never
    /// drops; false for all other chunks.
    fn is_permanent(&self) -> bool {
        matches!(self.chunk.kind, ChunkKind::Header | ChunkKind::Definitions)
    }
}

/// Returns the event number of the chunk's last event or full state; `None` for a header or
/// definitions.
pub(super) fn end_event(chunk: &Chunk) -> Option<u64> {
    matches!(chunk.kind, ChunkKind::Events | ChunkKind::State).then(|| chunk.first_event + chunk.events)
}

/// The newest chunks of a live recording, which viewers read. Chunks are numbered from 0 in order
/// of publication.
#[derive(Default)]
pub(super) struct History {
    /// Header and definition chunks from before `chunks`.
    permanent: Vec<ChunkEntry>,
    /// Memory of `permanent`, in bytes.
    permanent_bytes: u64,
    /// All later chunks. The first is the header or a full state.
    chunks: VecDeque<ChunkEntry>,
    /// Numbers of the full states among `chunks`.
    states: VecDeque<u64>,
    /// Event number of the last event in each of the chunks dropped most recently.
    dropped_end_events: VecDeque<Option<u64>>,
    /// Number of the next chunk.
    pub(super) end: u64,
    /// Memory of all chunks ever published, in bytes.
    end_memory: u64,
    /// Bytes of all chunks ever published.
    end_bytes: u64,
    /// The newest event.
    end_event: Option<u64>,
    /// The file with the whole recording, if there is one.
    pub(super) file_sync: Option<FileHubSync>,
}

impl History {
    /// Returns the number of the oldest chunk that has not been dropped, apart from header and
    /// definitions; the next chunk's number if there are no chunks.
    pub(super) fn first(&self) -> u64 {
        self.chunks.front().map_or(self.end, |entry| entry.number)
    }

    /// Returns the memory that the history takes, in bytes, including [`CHUNK_OVERHEAD`] for each
    /// chunk.
    pub(super) fn held_bytes(&self) -> u64 {
        self.permanent_bytes + self.lag(self.first())
    }

    /// Returns the memory of chunk number `from` and all later ones, in bytes: how far a viewer
    /// lags whose next chunk is `from`. 0 if `from` is not published yet.
    pub(super) fn lag(&self, from: u64) -> u64 {
        self.chunks_from(from).next().map_or(0, |entry| self.end_memory - entry.memory_before)
    }

    /// Appends the recording's next chunk and gives it the next number.
    pub(super) fn push(&mut self, chunk: Arc<Chunk>) {
        let (number, memory_before, bytes_before) = (self.end, self.end_memory, self.end_bytes);
        if chunk.kind == ChunkKind::State {
            self.states.push_back(number);
        }
        self.end_event = end_event(&chunk).or(self.end_event);
        self.end_memory += (chunk.bytes.len() + CHUNK_OVERHEAD) as u64;
        self.end_bytes += chunk.bytes.len() as u64;
        self.chunks.push_back(ChunkEntry { number, memory_before, bytes_before, end_event: self.end_event, chunk });
        self.end += 1;
    }

    /// Drops the oldest chunks until the rest takes at most `limit` bytes of memory. Never drops
    /// header, definitions, the newest full state and all chunks after it, or the chunks from
    /// number `needed` on, which viewers of the file still need.
    pub(super) fn trim(&mut self, limit: u64, needed: u64) {
        // The newest full state stays, because viewers begin there.
        while self.lag(self.first()) > limit
            && let Some(next) = self.states.iter().copied().find(|&state| state > self.first())
            && next <= needed
        {
            while let Some(entry) = self.chunks.pop_front_if(|entry| entry.number < next) {
                if self.dropped_end_events.len() == MAX_DROPPED_END_EVENTS {
                    self.dropped_end_events.pop_front();
                }
                self.dropped_end_events.push_back(entry.end_event);
                if entry.is_permanent() {
                    let (_, bytes_before) = self.permanent_size();
                    self.permanent_bytes += (entry.chunk.bytes.len() + CHUNK_OVERHEAD) as u64;
                    self.permanent.push(ChunkEntry { bytes_before, ..entry });
                }
            }
            while self.states.pop_front_if(|state| *state < next).is_some() {}
        }
    }

    /// Returns the chunk number of the newest full state, or `None` if the history has no full
    /// state.
    pub(super) fn newest_state(&self) -> Option<u64> {
        self.states.back().copied()
    }

    /// Returns the number of the chunk at which a viewer can begin that already knows everything
    /// before chunk number `end`: the newest full state before `end`, or the oldest chunk held.
    /// `None` if the chunks before `end` have been dropped.
    pub(super) fn begin_before(&self, end: u64) -> Option<u64> {
        let count = self.states.partition_point(|&state| state < end);
        let oldest = || Some(self.first()).filter(|&first| first <= end);
        count.checked_sub(1).map(|index| self.states[index]).or_else(oldest)
    }

    /// Returns the number of the chunk at which a new viewer begins: the newest full state, an
    /// earlier full state, or the oldest chunk held, as `begin` says.
    pub(super) fn begin(&self, begin: ViewFrom) -> u64 {
        let newest = self.newest_state().unwrap_or(self.first());
        match begin {
            ViewFrom::Newest => newest,
            ViewFrom::Oldest => self.first(),
            ViewFrom::Recent(bytes) if self.lag(self.first()) <= bytes => self.first(),
            ViewFrom::Recent(bytes) => {
                let state = self.states.partition_point(|&state| self.lag(state) > bytes);
                self.states.get(state).copied().unwrap_or(newest)
            }
        }
    }

    /// Returns the event number of the last event in the recording's first `count` chunks, dropped
    /// ones included. If that event number is no longer kept, returns the oldest one that is;
    /// `None` if these chunks have no event.
    pub(super) fn event_after(&self, count: u64) -> Option<u64> {
        let number = count.checked_sub(1)?;
        let Some(dropped) = self.first().checked_sub(count) else {
            return self.chunks_from(number).next()?.end_event;
        };
        // The last entry belongs to the chunk just before `chunks`.
        let from_end = usize::try_from(dropped).unwrap_or(usize::MAX).saturating_add(1);
        self.dropped_end_events.get(self.dropped_end_events.len().saturating_sub(from_end)).copied().flatten()
    }

    /// Iterates over the chunks numbered `from` or higher. If `from` was dropped, starts at
    /// [`first`](Self::first).
    pub(super) fn chunks_from(&self, from: u64) -> impl Iterator<Item = &ChunkEntry> {
        let skip = usize::try_from(from.saturating_sub(self.first())).unwrap_or(usize::MAX);
        self.chunks.range(skip.min(self.chunks.len())..)
    }

    /// Iterates over header and definition chunks numbered `from` or higher. The history never
    /// drops them.
    pub(super) fn permanent_from(&self, from: u64) -> impl Iterator<Item = &ChunkEntry> {
        let at = self.permanent.partition_point(|entry| entry.number < from);
        self.permanent[at..].iter().chain(self.chunks_from(from).filter(|entry| entry.is_permanent()))
    }

    /// Returns the number and the total bytes of the header and definition chunks that were
    /// published before chunk [`first`](Self::first).
    pub(super) fn permanent_size(&self) -> (usize, u64) {
        let bytes = self.permanent.last().map_or(0, |entry| entry.bytes_before + entry.chunk.bytes.len() as u64);
        (self.permanent.len(), bytes)
    }

    /// Finds a byte in the header and definition chunks that precede chunk [`first`](Self::first):
    /// the byte at offset `at` of the first `count` of them, joined. Returns the byte's chunk and
    /// its offset in that chunk.
    #[cfg(feature = "server")]
    pub(super) fn permanent_at(&self, at: u64, count: usize) -> Option<(&ChunkEntry, u64)> {
        let number = self.permanent.get(..count)?.partition_point(|entry| entry.bytes_before <= at).checked_sub(1)?;
        self.permanent.get(number).map(|entry| (entry, at - entry.bytes_before))
    }

    /// Finds the byte at offset `at`, counted over all chunks ever published; returns its chunk and
    /// its offset in the chunk. `None` if the chunk has been dropped.
    #[cfg(feature = "server")]
    pub(super) fn chunk_at(&self, at: u64) -> Option<(&ChunkEntry, u64)> {
        let number = self.chunks.partition_point(|entry| entry.bytes_before <= at).checked_sub(1)?;
        self.chunks.get(number).map(|entry| (entry, at - entry.bytes_before))
    }

    /// Returns the total bytes of all chunks ever published before chunk number `from`. That chunk
    /// must not have been dropped; it may be the next chunk to be published.
    #[cfg(feature = "server")]
    pub(super) fn bytes_before(&self, from: u64) -> u64 {
        self.chunks_from(from).next().map_or(self.end_bytes, |entry| entry.bytes_before)
    }

    /// Returns the number of the oldest chunk that the hub must keep for viewers that still read
    /// the recording's file; `u64::MAX` if the recording is not being written to a file.
    pub(super) fn needed(&self) -> u64 {
        self.file_sync
            .as_ref()
            .filter(|file_sync| !file_sync.has_ended)
            .map_or(u64::MAX, |file_sync| file_sync.newest.chunk)
    }

    /// Iterates over all chunks that the history holds, in order; together they are a valid
    /// recording.
    pub(super) fn all(&self) -> impl Iterator<Item = &ChunkEntry> {
        self.permanent.iter().chain(&self.chunks)
    }
}
