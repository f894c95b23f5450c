//! The chunks that are held.

use std::collections::VecDeque;
use std::sync::Arc;

use vramscope_trace::{Chunk, ChunkKind};

use super::Begin;
use super::joint::Joint;

/// What a chunk takes beside its bytes: its entry here, its own fields and those of the allocator. It counts where a quiet program
/// makes many small chunks.
const CHUNK_OVERHEAD: usize = size_of::<Entry>() + size_of::<Chunk>() + 48;
/// Of so many chunks that are no longer held it is known up to which event they went: an hour of them, in a megabyte.
const MAX_ENDS: usize = 1 << 16;

/// A chunk and where in the recording it stands.
#[derive(Clone)]
pub(super) struct Entry {
    /// How many chunks come before it.
    pub(super) number: u64,
    /// How many bytes of memory the chunks before it take.
    offset: u64,
    /// How many bytes the chunks before it have; of what is lasting, only such chunks count.
    at: u64,
    /// The moment that the recording had come to with it, if it had begun.
    end_event: Option<u64>,
    pub(super) chunk: Arc<Chunk>,
}

impl Entry {
    /// Whether everyone must have it, even those who do not get the events around it.
    fn is_lasting(&self) -> bool {
        matches!(self.chunk.kind, ChunkKind::Header | ChunkKind::Definitions)
    }
}

/// The moment after a chunk, where it speaks of one.
pub(super) fn end_event(chunk: &Chunk) -> Option<u64> {
    matches!(chunk.kind, ChunkKind::Events | ChunkKind::State).then(|| chunk.first_event + chunk.events)
}

#[derive(Default)]
pub(super) struct History {
    /// Head and definitions from before `chunks`.
    lasting: Vec<Entry>,
    /// Bytes of memory that they take.
    lasting_bytes: u64,
    /// Everything since; begins with the recording's head or with a full state.
    chunks: VecDeque<Entry>,
    /// The numbers of the full states among them.
    states: VecDeque<u64>,
    /// The moments after those chunks that were dropped last.
    ends: VecDeque<Option<u64>>,
    /// The number that the next chunk will have.
    pub(super) end: u64,
    /// Bytes of memory of all chunks ever published.
    end_offset: u64,
    /// Bytes of all chunks ever published.
    end_at: u64,
    /// The newest moment.
    end_event: Option<u64>,
    /// The file beside, where there is one.
    pub(super) joint: Option<Joint>,
}

impl History {
    /// The number of the first chunk that is held with everything after it.
    pub(super) fn first(&self) -> u64 {
        self.chunks.front().map_or(self.end, |entry| entry.number)
    }

    /// Bytes of memory of everything that is held.
    pub(super) fn held_bytes(&self) -> u64 {
        self.lasting_bytes + self.lag(self.first())
    }

    /// Bytes of memory of the chunks from number `from` on.
    pub(super) fn lag(&self, from: u64) -> u64 {
        self.held_from(from).next().map_or(0, |entry| self.end_offset - entry.offset)
    }

    pub(super) fn push(&mut self, chunk: Arc<Chunk>) {
        let (number, offset, at) = (self.end, self.end_offset, self.end_at);
        if chunk.kind == ChunkKind::State {
            self.states.push_back(number);
        }
        self.end_event = end_event(&chunk).or(self.end_event);
        self.end_offset += (chunk.bytes.len() + CHUNK_OVERHEAD) as u64;
        self.end_at += chunk.bytes.len() as u64;
        self.chunks.push_back(Entry { number, offset, at, end_event: self.end_event, chunk });
        self.end += 1;
    }

    /// Drops the oldest chunks while they take more than so many bytes. What stands at number `needed`, and what comes after it, stays.
    pub(super) fn trim(&mut self, limit: u64, needed: u64) {
        // The newest state stays, for it is what everything can begin from.
        while self.lag(self.first()) > limit
            && let Some(next) = self.states.iter().copied().find(|&state| state > self.first())
            && next <= needed
        {
            while let Some(entry) = self.chunks.pop_front_if(|entry| entry.number < next) {
                if self.ends.len() == MAX_ENDS {
                    self.ends.pop_front();
                }
                self.ends.push_back(entry.end_event);
                if entry.is_lasting() {
                    let (_, at) = self.lasting();
                    self.lasting_bytes += (entry.chunk.bytes.len() + CHUNK_OVERHEAD) as u64;
                    self.lasting.push(Entry { at, ..entry });
                }
            }
            while self.states.pop_front_if(|state| *state < next).is_some() {}
        }
    }

    /// The newest full state that is held.
    pub(super) fn newest_state(&self) -> Option<u64> {
        self.states.back().copied()
    }

    /// Where a newcomer begins.
    pub(super) fn begin(&self, begin: Begin) -> u64 {
        let newest = self.newest_state().unwrap_or(self.first());
        match begin {
            Begin::Newest => newest,
            Begin::Oldest => self.first(),
            Begin::Recent(bytes) if self.lag(self.first()) <= bytes => self.first(),
            Begin::Recent(bytes) => {
                let state = self.states.partition_point(|&state| self.lag(state) > bytes);
                self.states.get(state).copied().unwrap_or(newest)
            }
        }
    }

    /// The moment after the first `count` chunks. Where that is no longer known, the oldest that is.
    pub(super) fn event_after(&self, count: u64) -> Option<u64> {
        let number = count.checked_sub(1)?;
        let Some(dropped) = self.first().checked_sub(count) else {
            return self.held_from(number).next()?.end_event;
        };
        // The last of them is that of the chunk before the first that is held.
        let from_end = usize::try_from(dropped).unwrap_or(usize::MAX).saturating_add(1);
        self.ends.get(self.ends.len().saturating_sub(from_end)).copied().flatten()
    }

    /// The chunks from number `from` on that are held.
    pub(super) fn held_from(&self, from: u64) -> impl Iterator<Item = &Entry> {
        let skip = usize::try_from(from.saturating_sub(self.first())).unwrap_or(usize::MAX);
        self.chunks.range(skip.min(self.chunks.len())..)
    }

    /// Head and definitions from number `from` on.
    pub(super) fn lasting_from(&self, from: u64) -> impl Iterator<Item = &Entry> {
        let at = self.lasting.partition_point(|entry| entry.number < from);
        self.lasting[at..].iter().chain(self.held_from(from).filter(|entry| entry.is_lasting()))
    }

    /// How many heads and chunks of definitions there are from before what is held, and how many bytes they have.
    pub(super) fn lasting(&self) -> (usize, u64) {
        let bytes = self.lasting.last().map_or(0, |entry| entry.at + entry.chunk.bytes.len() as u64);
        (self.lasting.len(), bytes)
    }

    /// Which of the first `count` of those has the byte at a place, and where in itself.
    pub(super) fn lasting_at(&self, at: u64, count: usize) -> Option<(&Entry, u64)> {
        let number = self.lasting.get(..count)?.partition_point(|entry| entry.at <= at).checked_sub(1)?;
        self.lasting.get(number).map(|entry| (entry, at - entry.at))
    }

    /// The chunk that is held and has the byte at a place, and where in itself; places count from the first chunk ever published.
    pub(super) fn chunk_at(&self, at: u64) -> Option<(&Entry, u64)> {
        let number = self.chunks.partition_point(|entry| entry.at <= at).checked_sub(1)?;
        self.chunks.get(number).map(|entry| (entry, at - entry.at))
    }

    /// Bytes of the chunks before number `from`, which is held or the next one.
    pub(super) fn bytes_before(&self, from: u64) -> u64 {
        self.held_from(from).next().map_or(self.end_at, |entry| entry.at)
    }

    /// Everything that is held, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.lasting.iter().chain(&self.chunks)
    }
}
