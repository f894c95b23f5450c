//! Decides which part of a recording's file is kept.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::time::{Duration, Instant};

use vramscope_trace::ChunkKind;

use super::keep::Keep;

/// Returns true for chunks with the recording's content (header, definitions, events, full states,
/// annotations), false for chunks of the index.
pub(crate) fn is_of_the_recording(kind: ChunkKind) -> bool {
    use ChunkKind::{Annotations, Definitions, Events, Header, State};
    matches!(kind, Header | Definitions | Events | State | Annotations)
}

/// The byte offset of a full state in the file, and when the state was written.
#[derive(Clone, Copy, Debug)]
struct StatePosition {
    at: u64,
    time: Instant,
}

/// The byte offsets of chunks in a file that decide what can be removed: header and definition
/// chunks, which must be kept, and full states, at which the kept part may begin.
#[derive(Clone, Debug, Default)]
pub(super) struct FileLayout {
    len: u64,
    /// Ranges of header and definition chunks, which are always kept. Adjacent ranges are merged.
    permanent: Vec<Range<u64>>,
    states: VecDeque<StatePosition>,
    /// Time of the first chunk that is kept.
    start: Option<Instant>,
}

impl FileLayout {
    /// Returns the size of the file in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds a chunk of `len` bytes, written at time `now`, at the end of the file.
    pub(super) fn push(&mut self, kind: ChunkKind, len: u64, now: Instant) {
        let begin = self.len;
        self.len += len;
        self.start.get_or_insert(now);
        match kind {
            ChunkKind::Header | ChunkKind::Definitions => match self.permanent.last_mut() {
                Some(last) if last.end == begin => last.end = self.len,
                _ => self.permanent.push(begin..self.len),
            },
            ChunkKind::State => self.states.push_back(StatePosition { at: begin, time: now }),
            _ => {}
        }
    }

    /// Returns the byte ranges of header and definition chunks that begin before offset `cut`. They
    /// are always kept.
    pub(super) fn permanent_before(&self, cut: u64) -> impl Iterator<Item = Range<u64>> {
        self.permanent.iter().take_while(move |range| range.start < cut).cloned()
    }

    /// Returns the total size, in bytes, of header and definition chunks that begin before offset
    /// `cut`.
    fn permanent_bytes_before(&self, cut: u64) -> u64 {
        self.permanent_before(cut).map(|range| range.end - range.start).sum()
    }

    /// Returns the file's size in bytes after everything before offset `cut` is removed, except
    /// header and definitions.
    fn len_after(&self, cut: u64) -> u64 {
        self.permanent_bytes_before(cut) + self.len - cut
    }

    /// Returns the layout of the file after everything before offset `cut` is removed, except
    /// header and definitions.
    pub(super) fn after(&self, cut: u64) -> Self {
        let kept = self.permanent_bytes_before(cut);
        let moved = |at: u64| at - cut + kept;
        let states: VecDeque<_> = (self.states.iter().filter(|state| state.at >= cut))
            .map(|state| StatePosition { at: moved(state.at), ..*state })
            .collect();
        let after = self.permanent.iter().filter(|range| range.start >= cut);
        let permanent = iter::once(0..kept).chain(after.map(|range| moved(range.start)..moved(range.end))).collect();
        let start = states.front().map(|state| state.time).or(self.start);
        Self { len: self.len_after(cut), permanent, states, start }
    }

    /// Returns true if an eighth of a limit of `keep`, in bytes or time, has passed since the last
    /// full state. A new full state is then needed, at which the file can begin.
    pub(super) fn wants_state(&self, keep: &Keep, now: Instant) -> bool {
        let newest = self.states.back();
        let bytes = self.len - newest.map_or(0, |state| state.at);
        let since = newest.map(|state| state.time).or(self.start);
        keep.bytes.is_some_and(|limit| bytes > limit / 8)
            || keep.time.zip(since).is_some_and(|(time, since)| now.duration_since(since) > time / 8)
    }

    /// Returns the byte offset of the full state at which the file should begin from now on; `None`
    /// if the limits of `keep` are not nearly reached, or if no full state would make the file
    /// enough shorter.
    pub(super) fn cut(&self, keep: &Keep, now: Instant) -> Option<u64> {
        let by_bytes = keep.bytes.and_then(|limit| self.cut_by_bytes(limit));
        let by_time = keep.time.and_then(|time| self.cut_by_time(time, now));
        by_bytes.max(by_time)
    }

    /// Returns the byte offset of the oldest full state from which at most half of `limit` bytes
    /// remain; `None` if the file has less than three quarters of `limit`. The rest is room for
    /// chunks that arrive during the copy.
    fn cut_by_bytes(&self, limit: u64) -> Option<u64> {
        let fits = |state: &&StatePosition| self.len_after(state.at) <= limit / 2;
        if self.len < limit / 4 * 3 {
            return None;
        }
        self.states.iter().find(fits).map(|state| state.at)
    }

    /// Returns the byte offset of the newest full state, for a file that has no room left. Returns
    /// `None` if less than an eighth of the file could be removed: the copy would have to be
    /// repeated soon.
    pub(super) fn last_cut(&self) -> Option<u64> {
        self.states.back().map(|state| state.at).filter(|&cut| self.len_after(cut) <= self.len / 8 * 7)
    }

    /// Returns the byte offset of the newest full state that is at least `time` old; `None` if the
    /// file covers less than one and a half times `time`.
    fn cut_by_time(&self, time: Duration, now: Instant) -> Option<u64> {
        let age = |since: Instant| now.duration_since(since);
        if self.start.is_none_or(|start| age(start) < time + time / 2) {
            return None;
        }
        let state = self.states.iter().rev().find(|state| age(state.time) >= time);
        state.map(|state| state.at).filter(|&cut| self.len_after(cut) < self.len)
    }
}
