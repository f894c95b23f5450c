//! Indexes behind pictures of all allocations: allocations by size and lifetime, and the reserved
//! memory.

use std::ops::Range;

use vramscope_trace::{DeviceId, FormatError};

use super::DeviceHistory;
use crate::address_map::SegmentHistory;
use crate::bands::BandIndex;
use crate::composition::{DeviceRows, RowGroups};

/// Indexes over a device's allocations and segments, built in steps.
#[derive(Default)]
pub struct AllocationIndexes {
    /// The device and the generation of the history that `index` is of.
    source: Option<(DeviceId, u64)>,
    /// An index of the allocations by size and lifetime.
    pub index: BandIndex,
    /// The moment up to which the index is complete; `None` until it was complete once.
    index_until: Option<u64>,
    /// Number of changes that the index has visited, at most.
    visited: usize,
    /// The reserved memory of all devices.
    pub segments: SegmentHistory,
    /// The generation of the history when the segments were begun.
    segments_of: Option<u64>,
    /// The moment up to which the segments are complete; `None` until they were complete once.
    segments_until: Option<u64>,
}

impl AllocationIndexes {
    /// Adds up to `max_changes` further changes of the device's allocations to the index. Returns
    /// true if the index is complete.
    ///
    /// Not inlined into a view: the page loads most views as a second WebAssembly module, from
    /// which the calls for each change would take 23% longer.
    #[inline(never)]
    pub fn step_index(&mut self, history: &DeviceHistory<'_>, max_changes: usize) -> bool {
        let lifetimes = history.lifetimes;
        let source = Some((history.device, history.history.generation()));
        if self.source != source {
            (self.source, self.index) = (source, BandIndex::new());
            (self.index_until, self.visited) = (None, 0);
        }
        // The index does not depend on groups.
        let groups = RowGroups::default();
        let is_done = self.index.step(&DeviceRows { lifetimes, groups: &groups }, max_changes);
        self.visited = self.visited.saturating_add(max_changes).min(lifetimes.change_count());
        if is_done {
            self.index_until = Some(history.history.until());
        }
        is_done
    }

    /// Adds up to `max_events` further events to the history of segments. Returns true if that
    /// history is complete, and the byte ranges of the recording's file that must be loaded first.
    ///
    /// # Errors
    /// If an event cannot be read.
    pub fn step_segments(
        &mut self,
        history: &DeviceHistory<'_>,
        max_events: u64,
    ) -> Result<(bool, Vec<Range<u64>>), FormatError> {
        let generation = Some(history.history.generation());
        if self.segments_of != generation {
            (self.segments, self.segments_of, self.segments_until) = (SegmentHistory::new(), generation, None);
        }
        let missing = self.segments.missing(history.recording, max_events);
        if !missing.is_empty() {
            return Ok((true, missing));
        }
        let is_done = self.segments.step(history.recording, max_events)?;
        if is_done {
            self.segments_until = Some(self.segments.moment());
        }
        Ok((is_done, Vec::new()))
    }

    /// Returns true if the index of allocations (and if `needs_segments`, the history of segments)
    /// has been complete once.
    #[must_use]
    pub fn is_ready(&self, history: &DeviceHistory<'_>, needs_segments: bool) -> bool {
        let has_index = self.source == Some((history.device, history.history.generation()));
        let has_segments = self.segments_of == Some(history.history.generation()) && self.segments_until.is_some();
        has_index && self.index_until.is_some() && (has_segments || !needs_segments)
    }

    /// Returns the moments up to which the index of allocations and the history of segments are
    /// complete; 0 for never.
    #[must_use]
    pub fn until(&self) -> [u64; 2] {
        [self.index_until.unwrap_or(0), self.segments_until.unwrap_or(0)]
    }

    /// Returns the number of allocations and frees that the index has visited, and the number of
    /// all.
    #[must_use]
    pub fn progress(&self, history: &DeviceHistory<'_>) -> (u64, u64) {
        (self.visited as u64, history.lifetimes.change_count() as u64)
    }

    /// Returns the number of events that the history of segments has visited, and the number of all
    /// events; equal numbers before it has begun.
    #[must_use]
    pub fn segment_progress(&self, history: &DeviceHistory<'_>) -> (u64, u64) {
        let first = history.recording.first_event();
        let total = history.recording.end_event().saturating_sub(first);
        let is_begun = self.segments_of == Some(history.history.generation());
        (if is_begun { self.segments.moment().saturating_sub(first) } else { total }, total)
    }
}
