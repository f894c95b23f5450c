//! Drops the oldest part of a growing recording, so that the memory of a recording that is watched
//! for days stays bounded.
//!
//! The result equals the recording of a viewer that joined at the first full state that stays.
//! Counters over time, peaks, metrics, marks and incidents are computed again from the part that
//! stays, in steps, while more events arrive. Then the oldest part is dropped at once. If half of
//! the memory is kept each time, every event is decoded twice on average.

use super::overview::{Incident, Overview};
use super::recording_data::Recording;
use super::stored_chunk::StoredChunk;
use super::trim_progress::TrimProgress;
use crate::chunk::{ChunkKind, PackedChunk, preamble};
use crate::decoder::DecodeContext;
use crate::event::Annotation;
use crate::memory_state::MemoryState;

/// Returns true for the kinds of chunks that a trim never drops, because later chunks need them:
/// headers and definitions.
fn is_always_kept(kind: ChunkKind) -> bool {
    matches!(kind, ChunkKind::Header | ChunkKind::Definitions)
}

impl Recording {
    /// Returns the memory that the recording occupies, in bytes, without the parts whose size is
    /// bounded: counter series, metrics and the last memory state.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.chunk_bytes
            + self.overview.annotations.len() * size_of::<Annotation>()
            + self.overview.incidents.len() * size_of::<Incident>()
    }

    /// Returns true from [`start_trim`](Self::start_trim) until
    /// [`continue_trim`](Self::continue_trim) has dropped the oldest part.
    #[must_use]
    pub fn is_trimming(&self) -> bool {
        self.trim.is_some()
    }

    /// Starts to drop the oldest part of the recording, so that about `keep_bytes` of
    /// [`memory_bytes`](Self::memory_bytes) stay, and returns true;
    /// [`continue_trim`](Self::continue_trim) does the work.
    ///
    /// The part that stays begins with a full state; the last full state always stays. Returns
    /// false, changing nothing, if there is nothing to drop, or if the chunks are not in memory.
    pub fn start_trim(&mut self, keep_bytes: usize) -> bool {
        if self.drops_chunks || self.is_indexed || self.is_incomplete {
            return false;
        }
        // Assume that the memory of the overview is spread over the chunks in proportion to their
        // size.
        let share = keep_bytes as f64 / self.memory_bytes().max(1) as f64;
        let size = |stored: &StoredChunk| {
            stored.packed.as_ref().map_or(0, PackedChunk::memory_bytes) + 2 * size_of::<StoredChunk>()
        };
        let (states, events) = (&self.state_chunks, &self.event_chunks);
        let all: usize = states.iter().chain(events).map(size).sum();
        let stays = (all as f64 * share) as usize;
        let (mut left, mut event) = (all, 0);
        let cut = states.iter().find(|state| {
            while let Some(stored) = events.get(event).filter(|stored| stored.range.start < state.range.start) {
                left -= size(stored);
                event += 1;
            }
            let fits = left <= stays;
            left -= size(state);
            fits
        });
        let Some(cut) = cut.or(states.last()) else { return false };
        let (first_event, cut) = (cut.first_event, cut.range.start);
        if events.first().is_none_or(|first| first.range.start > cut) {
            return false;
        }
        let next_chunk = self.chunks.partition_point(|stored| stored.range.start < cut);
        let mut overview = Overview::default();
        overview.state = MemoryState { event: first_event, ..MemoryState::default() };
        self.trim = Some(TrimProgress { cut, first_event, next_chunk, context: DecodeContext::default(), overview });
        true
    }

    /// Decodes about `events` more events of the part that stays, after
    /// [`start_trim`](Self::start_trim). Returns true once the oldest part was dropped; false if
    /// more calls are needed or no trim is in progress.
    pub fn continue_trim(&mut self, events: u64) -> bool {
        let Some(mut trim) = self.trim.take() else { return false };
        let mut decoded = 0;
        while decoded <= events {
            let Some(stored) = self.chunks.get(trim.next_chunk) else {
                self.finish_trim(trim);
                return true;
            };
            trim.next_chunk += 1;
            // A chunk has a fixed cost, which equals the cost of 64 events.
            decoded += u64::from(stored.events) + 64;
            if is_always_kept(stored.kind) {
                continue;
            }
            // The chunk was decoded without error before. Should that fail now, everything stays.
            let read = self.chunk_in_memory(stored).map(|packed| trim.context.read(packed, &mut trim.overview));
            if read.is_none_or(|read| read.is_err()) {
                return false;
            }
        }
        self.trim = Some(trim);
        false
    }

    /// Drops every chunk before the first full state that stays, except the chunks that are always
    /// kept, and adopts the overview of the part that stays.
    fn finish_trim(&mut self, trim: TrimProgress) {
        let TrimProgress { cut, first_event, mut overview, .. } = trim;
        let mut freed = 0;
        for list in [&mut self.event_chunks, &mut self.state_chunks] {
            let before = list.partition_point(|stored| stored.range.start < cut);
            for stored in list.drain(..before) {
                freed += size_of::<StoredChunk>() + stored.packed.as_ref().map_or(0, PackedChunk::memory_bytes);
            }
        }
        let stays = |kind: ChunkKind, offset: u64| offset >= cut || is_always_kept(kind);
        let before = self.chunks.len();
        self.chunks.retain(|stored| stays(stored.kind, stored.range.start));
        freed += (before - self.chunks.len()) * size_of::<StoredChunk>();
        self.other_chunks.retain(|packed| {
            let stays = stays(packed.kind, packed.offset);
            freed += if stays { 0 } else { packed.memory_bytes() };
            stays
        });
        self.chunk_bytes = self.chunk_bytes.saturating_sub(freed);
        // No event precedes the first full state any longer.
        if let Some(first) = self.state_chunks.first_mut() {
            first.is_correction = true;
        }
        std::mem::swap(&mut overview.info, &mut self.overview.info);
        overview.text_bytes = self.overview.text_bytes;
        overview.sort_annotations();
        self.overview = overview;
        self.first_event = Some(first_event);
    }

    /// Returns the chunk that `stored` describes, or `None` if it is not in memory.
    fn chunk_in_memory(&self, stored: &StoredChunk) -> Option<&PackedChunk> {
        let from = stored.range.start;
        match self.listed(stored) {
            Some(listed) => listed.packed.as_ref(),
            None => self.other_chunks.get(self.other_chunks.partition_point(|packed| packed.offset < from)),
        }
    }

    /// Returns the bytes of the preamble and of every chunk in memory; concatenated they are a
    /// recording.
    pub fn bytes_in_memory(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let chunks = self.chunks.iter().filter_map(|stored| self.chunk_in_memory(stored).map(PackedChunk::to_bytes));
        std::iter::once(preamble().to_vec()).chain(chunks)
    }
}
