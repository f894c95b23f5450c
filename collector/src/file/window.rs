//! Decides which part of a recording's file is kept.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::{Duration, Instant};

use vramscope_trace::ChunkKind;

use super::keep::Keep;

/// Returns true for chunks of the recording itself, false for the index.
pub(crate) fn is_of_the_recording(kind: ChunkKind) -> bool {
    use ChunkKind::{Annotations, Definitions, Events, Header, State};
    matches!(kind, Header | Definitions | Events | State | Annotations)
}

/// Position and time of a full state in the file.
#[derive(Clone, Copy, Debug)]
struct Full {
    at: u64,
    since: Instant,
}

/// The positions in a file that matter for removing its oldest part.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    len: u64,
    /// Ranges of header and definition chunks, which are always kept. Adjacent ranges are merged.
    lasting: Vec<Range<u64>>,
    states: VecDeque<Full>,
    /// Time of the first chunk.
    begun: Option<Instant>,
}

impl Layout {
    /// Returns the size of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a chunk.
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

    /// Returns the ranges before `cut` that must be kept.
    pub(super) fn lasting_before(&self, cut: u64) -> impl Iterator<Item = Range<u64>> {
        self.lasting.iter().take_while(move |range| range.start < cut).cloned()
    }

    fn lasting_bytes_before(&self, cut: u64) -> u64 {
        self.lasting_before(cut).map(|range| range.end - range.start).sum()
    }

    /// Returns the file's size if everything removable before `cut` is removed.
    fn len_after(&self, cut: u64) -> u64 {
        self.lasting_bytes_before(cut) + self.len - cut
    }

    /// Returns the layout after everything removable before `cut` is removed.
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

    /// Returns true if a full state is needed soon, so that the file can be cut there.
    pub(super) fn wants_state(&self, keep: &Keep, now: Instant) -> bool {
        let newest = self.states.back();
        let bytes = self.len - newest.map_or(0, |state| state.at);
        let since = newest.map(|state| state.since).or(self.begun);
        keep.bytes.is_some_and(|limit| bytes > limit / 8)
            || keep.time.zip(since).is_some_and(|(time, since)| now.duration_since(since) > time / 8)
    }

    /// Returns where to cut now, if the file has become too large or too long.
    pub(super) fn cut(&self, keep: &Keep, now: Instant) -> Option<u64> {
        let by_bytes = keep.bytes.and_then(|limit| self.cut_by_bytes(limit));
        let by_time = keep.time.and_then(|time| self.cut_by_time(time, now));
        by_bytes.max(by_time)
    }

    /// Cuts to half the limit when three quarters are used. The rest is room for chunks that arrive
    /// during the copy.
    fn cut_by_bytes(&self, limit: u64) -> Option<u64> {
        let fits = |state: &&Full| self.len_after(state.at) <= limit / 2;
        if self.len < limit / 4 * 3 {
            return None;
        }
        self.states.iter().find(fits).map(|state| state.at)
    }

    /// Returns the cut that keeps the least, for when there is no room left. `None` if it would
    /// save little: the copy would have to be repeated soon.
    pub(super) fn last_cut(&self) -> Option<u64> {
        self.states.back().map(|state| state.at).filter(|&cut| self.len_after(cut) <= self.len / 8 * 7)
    }

    /// Cuts to `time` when one and a half times as much has been recorded.
    fn cut_by_time(&self, time: Duration, now: Instant) -> Option<u64> {
        let age = |since: Instant| now.duration_since(since);
        if self.begun.is_none_or(|begun| age(begun) < time + time / 2) {
            return None;
        }
        let old = self.states.iter().rev().find(|state| age(state.since) >= time);
        old.map(|state| state.at).filter(|&cut| self.len_after(cut) < self.len)
    }
}
