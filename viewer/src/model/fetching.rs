//! Loads parts of a large file on demand: decides which bytes to load, and when a moment can be
//! shown.
//!
//! A recording opened by its index has counters over time, but no events. When the user goes to
//! another moment, the page shows the old one until everything for the new one has been loaded. If
//! the user goes to several moments meanwhile, the page shows only the last.

use std::ops::Range;

use vramscope_trace::FormatError;
use vramscope_trace::sort::sort_by_key;

use super::state::{Model, Origin, PendingMoment};

/// Maximum distance in bytes between two needed chunks that share one request; the bytes between
/// them are loaded too.
const MAX_GAP: u64 = 64 << 10;
/// Maximum size in bytes of a request for more than one chunk; a larger chunk is a request alone.
const MAX_FETCH: u64 = 4 << 20;
/// Maximum number of missing bytes up to which [`Model::fetches_for_rest`] loads the rest of a
/// recording in advance.
const MAX_REST: u64 = 32 << 20;
/// Numbers of events that the page loads in advance, before and after the moment on the screen.
/// Full states are about this far apart, and playback passes this many events in a second.
const PREFETCHED_EVENTS: [u64; 2] = [16 << 10, 32 << 10];

/// A request for a byte range of the recording's file, and the needed chunks in this range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The byte range of the file to load.
    pub range: Range<u64>,
    /// Byte ranges of the needed chunks in the file, ascending.
    chunks: Vec<Range<u64>>,
}

/// Combines chunks, given by their byte ranges in the file, into requests. Chunks at most
/// [`MAX_GAP`] apart share a request, up to [`MAX_FETCH`] bytes.
fn combine(mut chunks: Vec<Range<u64>>) -> Vec<Fetch> {
    sort_by_key(&mut chunks, |chunk| chunk.start);
    chunks.dedup();
    let mut fetches: Vec<Fetch> = Vec::new();
    for chunk in chunks {
        match fetches.last_mut() {
            Some(last)
                if chunk.start.saturating_sub(last.range.end) <= MAX_GAP
                    && chunk.end - last.range.start <= MAX_FETCH =>
            {
                last.range.end = chunk.end;
                last.chunks.push(chunk);
            }
            _ => fetches.push(Fetch { range: chunk.clone(), chunks: vec![chunk] }),
        }
    }
    fetches
}

impl Model {
    /// Returns true while the page waits for the bytes of a requested moment.
    pub fn is_loading(&self) -> bool {
        self.pending_moment.is_some()
    }

    /// Returns the event number of the moment that the page is going to: the moment being loaded if
    /// it was requested by event number, else the moment on the screen.
    pub(super) fn target_event(&self) -> u64 {
        match self.pending_moment {
            Some(PendingMoment::Event(event)) => event,
            Some(PendingMoment::Time(_)) | None => self.state().event(),
        }
    }

    /// Returns the event number of a requested moment; approximate for a time whose events are not
    /// loaded.
    fn event_of(&self, moment: PendingMoment) -> u64 {
        match moment {
            PendingMoment::Event(event) => event,
            PendingMoment::Time(time_ns) => self.recording.event_at_time(time_ns),
        }
    }

    /// Makes `moment` the moment to load if its bytes are missing, and returns true. If they are
    /// loaded, returns false, and no moment waits any more.
    pub(super) fn load_moment(&mut self, moment: PendingMoment) -> bool {
        let is_missing = !self.recording.missing(self.event_of(moment)).is_empty();
        self.pending_moment = is_missing.then_some(moment);
        if is_missing {
            self.fetching_failed = false;
        }
        is_missing
    }

    /// Returns the byte ranges of the recording's file to load next; the caller passes their bytes
    /// to [`supply`](Self::supply).
    ///
    /// A requested moment is first. Then follow the last event before the moment on the screen, the
    /// memory of all devices if a view needs it, the exact times of the peaks, the exact timeline,
    /// and the events around the moment. The result is empty if nothing is missing, or after
    /// [`stop_fetching`](Self::stop_fetching).
    #[must_use]
    pub fn needed_fetches(&mut self) -> Vec<Fetch> {
        if self.fetching_failed || self.origin != Origin::File {
            return Vec::new();
        }
        if let Some(moment) = self.pending_moment {
            return combine(self.recording.missing(self.event_of(moment)));
        }
        let event = self.state().event();
        let mut missing = self.missing_for_event_before(event);
        if missing.is_empty() && self.complete_replay.is_missing() {
            missing = self.recording.missing(event);
        }
        if missing.is_empty() {
            missing = self.missing_for_peaks();
        }
        if missing.is_empty() {
            missing = self.missing_for_columns();
        }
        if missing.is_empty() {
            let [before, after] = PREFETCHED_EVENTS;
            missing = self.recording.missing_between(event.saturating_sub(before), event.saturating_add(after));
        }
        combine(missing)
    }

    /// Returns the requests that load `chunks`, given by their byte ranges in the recording's file.
    /// Returns none while a requested moment is being loaded, which is more urgent, and after
    /// [`stop_fetching`](Self::stop_fetching).
    pub fn fetches_for(&self, chunks: Vec<Range<u64>>) -> Vec<Fetch> {
        let is_idle = !self.fetching_failed && self.origin == Origin::File && self.pending_moment.is_none();
        if is_idle { combine(chunks) } else { Vec::new() }
    }

    /// Returns the requests that load the rest of the recording, so that later moments are shown at
    /// once; none if the rest is larger than 32 MiB.
    #[must_use]
    pub fn fetches_for_rest(&mut self) -> Vec<Fetch> {
        if self.is_rest_settled || self.fetching_failed || self.origin != Origin::File {
            return Vec::new();
        }
        let missing = self.recording.missing_between(self.recording.first_event(), self.recording.end_event());
        let bytes: u64 = missing.iter().map(|chunk| chunk.end - chunk.start).sum();
        self.is_rest_settled = missing.is_empty() || bytes > MAX_REST;
        if self.is_rest_settled { Vec::new() } else { combine(missing) }
    }

    /// Returns the byte ranges of the recording's file to load for the last event before `moment`,
    /// an event number. Empty if that event is loaded, or if no event is before `moment`.
    pub(super) fn missing_for_event_before(&self, moment: u64) -> Vec<Range<u64>> {
        if moment <= self.recording.first_event() { Vec::new() } else { self.recording.missing(moment - 1) }
    }

    /// Returns the byte ranges of the recording's file to load so that every pixel column of the
    /// timeline is exact; empty if all are loaded.
    ///
    /// Stores the last timeline for which all were loaded, because this check decodes chunks.
    fn missing_for_columns(&mut self) -> Vec<Range<u64>> {
        let view = (self.device, self.range(), self.timeline_width);
        if self.complete_view.as_ref() == Some(&view) {
            return Vec::new();
        }
        let missing = self.recording.missing_for_columns(view.0, view.1.start, view.1.end, view.2);
        if missing.is_empty() {
            self.complete_view = Some(view);
        }
        missing
    }

    /// Adds the loaded bytes of a fetch to the recording, and goes to the requested moment if its
    /// bytes are now complete.
    ///
    /// # Errors
    /// If the bytes contradict the recording's index.
    pub fn supply(&mut self, fetch: &Fetch, bytes: &[u8]) -> Result<(), FormatError> {
        for chunk in &fetch.chunks {
            let index = |offset: u64| usize::try_from(offset - fetch.range.start).unwrap_or(usize::MAX);
            let chunk_bytes = bytes
                .get(index(chunk.start)..index(chunk.end))
                .ok_or_else(|| FormatError::new(chunk.start, "fewer bytes arrived than were requested"))?;
            self.recording.supply(chunk.start, chunk_bytes)?;
        }
        let is_loaded = |&moment: &PendingMoment| self.recording.missing(self.event_of(moment)).is_empty();
        if let Some(moment) = self.pending_moment.filter(is_loaded) {
            self.go_to(self.event_of(moment))?;
        }
        self.find_peaks();
        self.changes.moment |= std::mem::take(&mut self.last_event_is_missing);
        self.changes.moment |= self.complete_replay.retry();
        let complete_before = self.complete_view.clone();
        self.changes.timeline |= self.missing_for_columns().is_empty() && self.complete_view != complete_before;
        Ok(())
    }

    /// Stops loading after an error, and pauses playback. The moment on the screen stays; loading
    /// starts again when the user goes to another moment or range.
    pub fn stop_fetching(&mut self) {
        self.pending_moment = None;
        self.fetching_failed = true;
        self.playback.pause();
        self.changes.moment = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearby_chunks_are_fetched_together() {
        let check = |chunks: &[(u64, u64)], expected: &[(u64, u64)]| {
            let fetches = combine(chunks.iter().map(|&(start, end)| start..end).collect());
            let ranges: Vec<_> = fetches.iter().map(|fetch| (fetch.range.start, fetch.range.end)).collect();
            assert_eq!(ranges, expected);
            let chunk_count: usize = fetches.iter().map(|fetch| fetch.chunks.len()).sum();
            assert_eq!(chunk_count, chunks.len());
        };
        check(&[], &[]);
        check(&[(5, 9), (0, 5)], &[(0, 9)]);
        check(&[(0, 5), (5 + MAX_GAP, 7 + MAX_GAP)], &[(0, 7 + MAX_GAP)]);
        check(&[(0, 5), (6 + MAX_GAP, 8 + MAX_GAP)], &[(0, 5), (6 + MAX_GAP, 8 + MAX_GAP)]);
        let end = MAX_FETCH;
        check(&[(0, 5), (5, end), (end, end + 1)], &[(0, end), (end, end + 1)]);
        check(&[(0, 2 * end)], &[(0, 2 * end)]);
    }
}
