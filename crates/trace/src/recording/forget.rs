//! Forgetting the oldest part of a recording that grows, so that one that is followed for days stays within bounds.
//!
//! What is left is the recording that somebody has who began to follow it with the first full state that stays: counters over time, peaks,
//! metrics, marks and incidents are made anew of what stays, a slice at a time, while more comes. Only when that is done the oldest part
//! goes, all at once. An event is so decoded twice on average, where half of what is held is kept each time.

use super::overview::{Incident, Overview};
use super::{Recording, Stored};
use crate::chunk::{ChunkKind, Packed, preamble};
use crate::decoder::Context;
use crate::event::Annotation;
use crate::state::MemoryState;

/// What stays when the oldest part of a recording is forgotten, as far as it has been looked at.
#[derive(Debug)]
pub(super) struct Forgetting {
    /// Where the first full state that stays stands in the recording.
    cut: u64,
    /// Its moment.
    first_event: u64,
    /// The place of the next chunk to be taken in again.
    next: usize,
    context: Context,
    overview: Overview,
}

/// Whether a chunk that comes before what stays stays, too: what it says holds for all that follows.
fn is_lasting(kind: ChunkKind) -> bool {
    matches!(kind, ChunkKind::Head | ChunkKind::Definitions)
}

impl Recording {
    /// Bytes of memory that it takes, but for what has a bound anyway.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
            + self.overview.annotations.len() * size_of::<Annotation>()
            + self.overview.incidents.len() * size_of::<Incident>()
    }

    /// Whether a part of it is [being forgotten](Self::forget).
    #[must_use]
    pub fn is_forgetting(&self) -> bool {
        self.forgetting.is_some()
    }

    /// Begins to forget its oldest part, so that about `keep_bytes` of what it [holds](Self::held_bytes) stay; [`forget_on`](Self::forget_on)
    /// does it. Says whether there is such a part: what stays begins with a full state, and the last of them stays in any case. What is not
    /// held in memory as a whole is not forgotten.
    pub fn forget(&mut self, keep_bytes: usize) -> bool {
        if self.passes_by || self.is_indexed || self.is_incomplete {
            return false;
        }
        // Of every chunk the same share of its bytes in memory is taken to be of what was made of it.
        let share = keep_bytes as f64 / self.held_bytes().max(1) as f64;
        let size = |stored: &Stored| stored.packed.as_ref().map_or(0, Packed::size_in_memory) + 2 * size_of::<Stored>();
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
        let next = self.chunks.partition_point(|stored| stored.range.start < cut);
        let mut overview = Overview::default();
        overview.state = MemoryState { event: first_event, ..MemoryState::default() };
        self.forgetting = Some(Forgetting { cut, first_event, next, context: Context::default(), overview });
        true
    }

    /// Looks through about `events` events of what is to stay. Says whether that was the last of it: the oldest part is gone now.
    pub fn forget_on(&mut self, events: u64) -> bool {
        let Some(mut forgetting) = self.forgetting.take() else { return false };
        let mut looked_at = 0;
        while looked_at <= events {
            let Some(place) = self.chunks.get(forgetting.next) else {
                self.let_go(forgetting);
                return true;
            };
            forgetting.next += 1;
            // What a chunk costs beside its events.
            looked_at += u64::from(place.events) + 64;
            if is_lasting(place.kind) {
                continue;
            }
            // It was read without error when it came; if that is not so any more, everything stays.
            let read = self.held_chunk(place).map(|packed| forgetting.context.read(packed, &mut forgetting.overview));
            if read.is_none_or(|read| read.is_err()) {
                return false;
            }
        }
        self.forgetting = Some(forgetting);
        false
    }

    /// Drops what comes before the cut.
    fn let_go(&mut self, forgetting: Forgetting) {
        let Forgetting { cut, first_event, mut overview, .. } = forgetting;
        let mut freed = 0;
        for list in [&mut self.event_chunks, &mut self.state_chunks] {
            let before = list.partition_point(|stored| stored.range.start < cut);
            for stored in list.drain(..before) {
                freed += size_of::<Stored>() + stored.packed.as_ref().map_or(0, Packed::size_in_memory);
            }
        }
        let stays = |kind: ChunkKind, offset: u64| offset >= cut || is_lasting(kind);
        let before = self.chunks.len();
        self.chunks.retain(|stored| stays(stored.kind, stored.range.start));
        freed += (before - self.chunks.len()) * size_of::<Stored>();
        self.others.retain(|packed| {
            let stays = stays(packed.kind, packed.offset);
            freed += if stays { 0 } else { packed.size_in_memory() };
            stays
        });
        self.held_bytes = self.held_bytes.saturating_sub(freed);
        // Nothing comes before it any more.
        if let Some(first) = self.state_chunks.first_mut() {
            first.is_news = true;
        }
        std::mem::swap(&mut overview.info, &mut self.overview.info);
        overview.text_bytes = self.overview.text_bytes;
        overview.sort_annotations();
        self.overview = overview;
        self.first_event = Some(first_event);
    }

    /// A chunk that is held in memory.
    fn held_chunk(&self, place: &Stored) -> Option<&Packed> {
        let from = place.range.start;
        let list = match place.kind {
            ChunkKind::Events => &self.event_chunks,
            ChunkKind::State => &self.state_chunks,
            _ => return self.others.get(self.others.partition_point(|packed| packed.offset < from)),
        };
        list.get(list.partition_point(|stored| stored.range.start < from)).and_then(|stored| stored.packed.as_ref())
    }

    /// The bytes of everything that is held in memory, in pieces; put behind each other they are a recording.
    pub fn held(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let chunks = self.chunks.iter().filter_map(|place| self.held_chunk(place).map(Packed::to_bytes));
        std::iter::once(preamble().to_vec()).chain(chunks)
    }
}
