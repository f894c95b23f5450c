//! Which part of a file is its newest, and what must go with it.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::{Duration, Instant};

use vramscope_trace::ChunkKind;

use super::keep::Keep;

/// Whether a chunk says something of what was recorded, not only of where the file's chunks are.
pub(crate) fn is_of_the_recording(kind: ChunkKind) -> bool {
    use ChunkKind::{Annotations, Definitions, Events, Header, State};
    matches!(kind, Header | Definitions | Events | State | Annotations)
}

/// Where a full state stands in the file, and since when.
#[derive(Clone, Copy, Debug)]
struct Full {
    at: u64,
    since: Instant,
}

/// A file's layout, as far as it matters for cutting its beginning off.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    len: u64,
    /// Where what must always be there stands, head and definitions; neighbors are one.
    lasting: Vec<Range<u64>>,
    states: VecDeque<Full>,
    /// When the first chunk came.
    begun: Option<Instant>,
}

impl Layout {
    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// A chunk was added.
    pub(super) fn push(&mut self, kind: ChunkKind, len: u64, now: Instant) {
        let begin = self.len;
        self.len += len;
        self.begun.get_or_insert(now);
        match kind {
            ChunkKind::Header | ChunkKind::Definitions => match self.lasting.last_mut() {
                Some(last) if last.end == begin => last.end = self.len,
                _ => self.lasting.push(begin..self.len),
            },
            ChunkKind::State => self.states.push_back(Full { at: begin, since: now }),
            _ => {}
        }
    }

    /// What must be there that stands before `cut`.
    pub(super) fn lasting_before(&self, cut: u64) -> impl Iterator<Item = Range<u64>> {
        self.lasting.iter().take_while(move |range| range.start < cut).cloned()
    }

    fn lasting_bytes_before(&self, cut: u64) -> u64 {
        self.lasting_before(cut).map(|range| range.end - range.start).sum()
    }

    /// Bytes that the file has once it is cut there.
    fn len_after(&self, cut: u64) -> u64 {
        self.lasting_bytes_before(cut) + self.len - cut
    }

    /// The layout once only what is lasting, and all from `cut` on, is there.
    pub(super) fn after(&self, cut: u64) -> Self {
        let kept = self.lasting_bytes_before(cut);
        let moved = |at: u64| at - cut + kept;
        let states: VecDeque<_> = (self.states.iter().filter(|state| state.at >= cut))
            .map(|state| Full { at: moved(state.at), ..*state })
            .collect();
        let behind = self.lasting.iter().filter(|range| range.start >= cut);
        let lasting = iter::once(0..kept).chain(behind.map(|range| moved(range.start)..moved(range.end))).collect();
        let begun = states.front().map(|state| state.since).or(self.begun);
        Self { len: self.len_after(cut), lasting, states, begun }
    }

    /// Whether a full state should come soon, so that the file can be cut there.
    pub(super) fn wants_state(&self, keep: &Keep, now: Instant) -> bool {
        let newest = self.states.back();
        let bytes = self.len - newest.map_or(0, |state| state.at);
        let since = newest.map(|state| state.since).or(self.begun);
        keep.bytes.is_some_and(|limit| bytes > limit / 8)
            || keep.time.zip(since).is_some_and(|(time, since)| now.duration_since(since) > time / 8)
    }

    /// Where to cut now, if it is time.
    pub(super) fn cut(&self, keep: &Keep, now: Instant) -> Option<u64> {
        let by_bytes = keep.bytes.and_then(|limit| self.cut_by_bytes(limit));
        let by_time = keep.time.and_then(|time| self.cut_by_time(time, now));
        by_bytes.max(by_time)
    }

    /// At three quarters, so that there is room for what comes while the rest is copied, to one half.
    fn cut_by_bytes(&self, limit: u64) -> Option<u64> {
        let fits = |state: &&Full| self.len_after(state.at) <= limit / 2;
        if self.len < limit / 4 * 3 {
            return None;
        }
        self.states.iter().find(fits).map(|state| state.at)
    }

    /// Where to cut when there is no room left: where the least is kept. Nowhere, where little would be gained by it:
    /// copying a file to save little of it would be done again and again.
    pub(super) fn last_cut(&self) -> Option<u64> {
        self.states.back().map(|state| state.at).filter(|&cut| self.len_after(cut) <= self.len / 8 * 7)
    }

    /// When there is half as much again as was asked for, to that.
    fn cut_by_time(&self, time: Duration, now: Instant) -> Option<u64> {
        let age = |since: Instant| now.duration_since(since);
        if self.begun.is_none_or(|begun| age(begun) < time + time / 2) {
            return None;
        }
        let old = self.states.iter().rev().find(|state| age(state.since) >= time);
        old.map(|state| state.at).filter(|&cut| self.len_after(cut) < self.len)
    }
}
