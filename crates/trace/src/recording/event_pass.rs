//! Reading all events of a recording in order, a chunk at a time.

use std::ops::Range;

use super::recording_data::Recording;
use crate::compression::Decompressor;
use crate::decoder::{ChunkEntry, each_entry};
use crate::error::FormatError;
use crate::event::Annotation;

impl Recording {
    /// Adds the marks to the [`annotations`](Self::annotations) of a recording that was opened by
    /// its index, which does not list them. Decodes all events; chunks that cannot be read are left
    /// out. Does nothing for other recordings, which always list marks.
    pub fn read_marks(&mut self) {
        if self.lists_marks() {
            return;
        }
        let (mut marks, mut decompressor) = (Vec::new(), Decompressor::default());
        for stored in &self.event_chunks {
            let _ = self.each_entry_from(stored.first_event, &mut decompressor, |at_event, entry| {
                if let ChunkEntry::Event(event) = entry {
                    marks.extend(Annotation::of_mark(event, at_event));
                }
            });
        }
        self.add_marks(&marks);
    }

    /// Adds the marks of a recording that was opened by its index to the
    /// [`annotations`](Self::annotations): `marks` are the marks that a pass over its events has
    /// found ([`Lifetimes::marks`](crate::Lifetimes::marks)). Returns false, and adds nothing, if
    /// the annotations have marks already.
    pub fn add_marks(&mut self, marks: &[Annotation]) -> bool {
        let is_new = !self.lists_marks();
        if is_new {
            self.lists_marks = true;
            marks.iter().for_each(|&mark| self.overview.add_annotation(mark));
            self.overview.sort_annotations();
        }
        is_new
    }

    /// Returns true if the annotations have the marks: always, except for a recording that was
    /// opened by its index.
    pub(crate) fn lists_marks(&self) -> bool {
        !self.is_indexed || self.lists_marks
    }

    /// Returns the byte ranges of chunks that are not in memory and that a pass over all events
    /// from index `from` (from 0) needs next: chunks of events, and the full states after missing
    /// events. The ranges have about `max_bytes` in total, but there is at least one; empty if the
    /// next chunk is in memory.
    ///
    /// Without a [`ReadAt`](crate::ReadAt), the caller must [`supply`](Self::supply) them.
    #[must_use]
    pub fn missing_events(&self, from: u64, max_bytes: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        if self.source.is_some() {
            return ranges;
        }
        let (mut at, mut bytes) = (from, 0);
        let first = self.event_chunks.partition_point(|stored| stored.end_event() <= from);
        for stored in &self.event_chunks[first..] {
            if ranges.is_empty() && at != from || bytes >= max_bytes && !ranges.is_empty() {
                break;
            }
            let next = stored.first_event.max(at);
            let mut add = |range: Range<u64>| {
                if !ranges.contains(&range) {
                    bytes += range.end - range.start;
                    ranges.push(range);
                }
            };
            if next != at || self.has_correction_at(next) {
                self.missing(next).into_iter().for_each(&mut add);
            } else if stored.packed.is_none() {
                add(stored.range.clone());
            }
            at = stored.end_event();
        }
        ranges
    }

    /// Returns the byte ranges of the chunks of events from index `from` on that are not in memory,
    /// within the next `ahead_bytes` of the recording's file; for a pass over all events that loads
    /// chunks before it needs them.
    #[must_use]
    pub fn missing_ahead(&self, from: u64, ahead_bytes: u64) -> Vec<Range<u64>> {
        if self.source.is_some() {
            return Vec::new();
        }
        let first = self.event_chunks.partition_point(|stored| stored.end_event() <= from);
        let chunks = &self.event_chunks[first..];
        let end = chunks.first().map_or(0, |stored| stored.range.start).saturating_add(ahead_bytes);
        let near = chunks.iter().take_while(|stored| stored.range.end <= end);
        near.filter(|stored| stored.packed.is_none()).map(|stored| stored.range.clone()).collect()
    }

    /// Calls `each` with the event with index `index` (from 0), if the recording has it, the
    /// relabels before it, and all events and relabels after it in the same chunk, each with its
    /// index. A relabel has the index of the event that follows it.
    ///
    /// Returns an error if the chunk cannot be read. `each` was then not called, unless the chunk's
    /// contents contradict themselves.
    pub(crate) fn each_entry_from(
        &self,
        index: u64,
        decompressor: &mut Decompressor,
        mut each: impl FnMut(u64, ChunkEntry<'_>),
    ) -> Result<(), FormatError> {
        let Some(stored) = self.chunk_of_event(index) else { return Ok(()) };
        let mut at = stored.first_event;
        each_entry(&*self.chunk(stored)?, decompressor, |entry| {
            if at >= index {
                each(at, entry);
            }
            if matches!(entry, ChunkEntry::Event(_)) {
                at = at.saturating_add(1);
            }
        })
    }
}
