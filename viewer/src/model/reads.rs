//! What is read of a recording when it is wanted: which bytes, and what becomes of a moment until they are here.
//!
//! A recording that was opened by its index has its overview and no events. The moment on the screen stays until all that the next one
//! takes has come; of several that were asked for meanwhile only the last is gone to.

use std::ops::Range;

use vramscope_trace::FormatError;

use super::{Model, Origin};

/// Bytes between two chunks that are read along with them rather than asked for apart.
const BRIDGED: u64 = 64 << 10;
/// Bytes that are read at once at most, where they are of more than one chunk.
const READ_AT_ONCE: u64 = 4 << 20;
/// Events around the moment that are read before anybody asks for them, behind and ahead: a full state stands about every so many, and whoever
/// plays is through them in a second.
const PREFETCHED: [u64; 2] = [16 << 10, 32 << 10];

/// A moment that somebody wants to see and that cannot be shown yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The one after so many events.
    Event(u64),
    /// The last one at or before a time; which that is, its events tell.
    Time(u64),
}

/// Bytes of the recording to be read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Where they are.
    pub range: Range<u64>,
    /// The chunks among them that are wanted.
    chunks: Vec<Range<u64>>,
}

/// Puts chunks that lie near each other into one fetch.
fn joined(chunks: Vec<Range<u64>>) -> Vec<Fetch> {
    let mut chunks = chunks;
    chunks.sort_unstable_by_key(|chunk| chunk.start);
    chunks.dedup();
    let mut fetches: Vec<Fetch> = Vec::new();
    for chunk in chunks {
        match fetches.last_mut() {
            Some(last)
                if chunk.start.saturating_sub(last.range.end) <= BRIDGED
                    && chunk.end - last.range.start <= READ_AT_ONCE =>
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
    /// Whether a moment is to be shown whose bytes are not here.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.wish.is_some()
    }

    /// The moment that is to be on the screen next; the one that is, where none is waited for.
    pub(super) fn moment(&self) -> u64 {
        match self.wish {
            Some(Wish::Event(event)) => event,
            Some(Wish::Time(_)) | None => self.state().event(),
        }
    }

    fn event_of(&self, wish: Wish) -> u64 {
        match wish {
            Wish::Event(event) => event,
            Wish::Time(time_ns) => self.recording.event_at_time(time_ns),
        }
    }

    /// Waits for what a wish takes, if it is not all here. Says whether it has to.
    pub(super) fn wait_for(&mut self, wish: Wish) -> bool {
        let waits = !self.recording.missing(self.event_of(wish)).is_empty();
        self.wish = waits.then_some(wish);
        if waits {
            self.gave_up = false;
        }
        waits
    }

    /// The bytes that are to be [supplied](Self::supply), of what is needed most: the moment that is waited for, and when it is on the
    /// screen what else the page could say of it, the timeline to the pixel, what is next to the moment. Empty where nothing is
    /// missing, or after it was [given up](Self::give_up).
    #[must_use]
    pub fn wants(&mut self) -> Vec<Fetch> {
        if self.gave_up || self.origin != Origin::File {
            return Vec::new();
        }
        if let Some(wish) = self.wish {
            return joined(self.recording.missing(self.event_of(wish)));
        }
        let here = self.state().event();
        let mut missing = self.missing_before(here);
        if missing.is_empty() {
            missing = self.missing_of_peaks();
        }
        if missing.is_empty() {
            missing = self.missing_columns();
        }
        if missing.is_empty() {
            let [behind, ahead] = PREFETCHED;
            missing = self.recording.missing_between(here.saturating_sub(behind), here.saturating_add(ahead));
        }
        joined(missing)
    }

    /// What knowing the event before a moment takes.
    pub(super) fn missing_before(&self, moment: u64) -> Vec<Range<u64>> {
        if moment <= self.recording.first_event() { Vec::new() } else { self.recording.missing(moment - 1) }
    }

    /// What the timeline that is looked at takes to be drawn to the pixel. Looked for once a view: the times of its ends cost decoding.
    fn missing_columns(&mut self) -> Vec<Range<u64>> {
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

    /// Takes bytes that were wanted, all of them, and shows what can be shown now.
    ///
    /// # Errors
    /// Where they are not what the recording's index says is there.
    pub fn supply(&mut self, fetch: &Fetch, bytes: &[u8]) -> Result<(), FormatError> {
        for chunk in &fetch.chunks {
            let place = |at: u64| usize::try_from(at - fetch.range.start).unwrap_or(usize::MAX);
            let own = bytes.get(place(chunk.start)..place(chunk.end));
            let own = own.ok_or_else(|| FormatError {
                offset: chunk.start,
                what: "fewer bytes came than were asked for".to_owned(),
            })?;
            self.recording.supply(chunk.start, own)?;
        }
        if let Some(wish) = self.wish.filter(|&wish| self.recording.missing(self.event_of(wish)).is_empty()) {
            self.go_to(self.event_of(wish))?;
        }
        self.find_peaks();
        // The event that led here, where it had not come yet.
        self.stale.moment |= std::mem::take(&mut self.lacks_last_event);
        let before = self.complete_view.clone();
        self.stale.timeline |= self.missing_columns().is_empty() && self.complete_view != before;
        Ok(())
    }

    /// Nothing more can be had: what is on the screen stays, and nothing is wanted until somebody looks elsewhere.
    pub fn give_up(&mut self) {
        self.wish = None;
        self.gave_up = true;
        self.playback.pause();
        self.stale.moment = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_near_each_other_are_read_at_once() {
        let check = |chunks: &[(u64, u64)], expected: &[(u64, u64)]| {
            let fetches = joined(chunks.iter().map(|&(start, end)| start..end).collect());
            let ranges: Vec<_> = fetches.iter().map(|fetch| (fetch.range.start, fetch.range.end)).collect();
            assert_eq!(ranges, expected);
            let wanted: usize = fetches.iter().map(|fetch| fetch.chunks.len()).sum();
            assert_eq!(wanted, chunks.len());
        };
        check(&[], &[]);
        check(&[(5, 9), (0, 5)], &[(0, 9)]);
        check(&[(0, 5), (5 + BRIDGED, 7 + BRIDGED)], &[(0, 7 + BRIDGED)]);
        check(&[(0, 5), (6 + BRIDGED, 8 + BRIDGED)], &[(0, 5), (6 + BRIDGED, 8 + BRIDGED)]);
        let end = READ_AT_ONCE;
        check(&[(0, 5), (5, end), (end, end + 1)], &[(0, end), (end, end + 1)]);
        check(&[(0, 2 * end)], &[(0, 2 * end)]);
    }
}
