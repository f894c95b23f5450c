//! A recording that grows: taking what comes, forgetting what is too much, breaks and what was missed.

use vramscope_trace::FormatError;

use super::{Model, Origin};
use crate::marks::Marks;

/// Bytes of memory that a live recording may take; a page that is open for days forgets its oldest part beyond that. They hold an hour and more
/// of 100,000 events a second.
pub const LIVE_LIMIT_BYTES: usize = 256 << 20;
/// The same for who has asked for the whole history: near what a browser gives a page.
pub const WHOLE_LIMIT_BYTES: usize = 512 << 20;

/// What there is to say when the moment on the screen was forgotten.
const MOMENT_FORGOTTEN: &str = "The moment that was on the screen is so old that the page does not hold it any more; this is the oldest that it holds.";

/// What there is to say when a link leads to a moment before what is held.
const LINK_LEADS_BEFORE: &str = "The link leads to an earlier moment than the page holds; this is the oldest that it holds. Load all brings the rest, and goes there.";

/// How a recording came to the page, as far as it does not say so itself.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Whether something came that is not on the screen yet.
    has_grown: bool,
    /// Whether all that was derived from the recording must be made anew.
    has_forgotten: bool,
    /// Bytes that it may take; no bound where it is none that goes on for days.
    limit_bytes: Option<usize>,
    /// Events that are known to be missing in what is not held any more, and those of them that were missed.
    lost_before: u64,
    missed_before: u64,
    /// The moment with which an earlier connection ended, where this one could not go on there.
    expected: Option<u64>,
    notice: Option<&'static str>,
    /// The moment to which a link leads, and which is not held.
    pub(super) linked: Option<u64>,
}

impl Model {
    /// Begins anew with the same live recording, because the connection could not go on where it ended.
    pub fn begin_again(&mut self) {
        let (end, lost, missed) = (self.recording.end_event(), self.lost_events(), self.missed_events());
        let name = std::mem::take(&mut self.name);
        let limit_bytes = self.growth.limit_bytes;
        self.begin(&name, Origin::Live);
        self.growth =
            Growth { lost_before: lost, missed_before: missed, expected: Some(end), limit_bytes, ..Growth::default() };
    }

    /// Lets the recording take so many bytes of memory, and forget its oldest part beyond that.
    pub fn hold_at_most(&mut self, limit_bytes: usize) {
        self.growth.limit_bytes = Some(limit_bytes);
    }

    /// Takes the next bytes of the recording; [`settle`](Self::settle) shows them.
    ///
    /// # Errors
    /// Where they are not a recording's; what came before stays usable.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.growth.has_grown = true;
        let taken = self.recording.push(bytes);
        let limit = self.growth.limit_bytes;
        if let Some(limit) = limit.filter(|&limit| self.recording.held_bytes() > limit && !self.is_forgetting()) {
            // Half of it, so that an event is looked at again only once on average.
            self.recording.forget(limit / 2);
        }
        taken
    }

    /// Whether the oldest part is being forgotten.
    #[must_use]
    pub fn is_forgetting(&self) -> bool {
        self.recording.is_forgetting()
    }

    /// Whether more has come than can be forgotten in time: the recording takes half as much again as it may.
    #[must_use]
    pub fn is_overfull(&self) -> bool {
        self.growth.limit_bytes.is_some_and(|limit| self.recording.held_bytes() > limit + limit / 2)
    }

    /// Goes on with that, by so many events or so.
    pub fn forget_on(&mut self, events: u64) {
        let (lost, missed) = (self.lost_events(), self.missed_events());
        if self.recording.forget_on(events) {
            self.growth.lost_before = lost.saturating_sub(self.recording.lost_events());
            self.growth.missed_before = missed.saturating_sub(self.recording.skipped_events());
            self.growth.expected = None;
            (self.growth.has_grown, self.growth.has_forgotten) = (true, true);
        }
    }

    /// Takes the next bytes of the recording, and shows them.
    ///
    /// # Errors
    /// Where they are not a recording's; what came before stays usable.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let taken = self.take(bytes);
        self.growth.has_grown = true;
        taken.and(self.settle())
    }

    /// Brings everything up to date with what has come since the last call.
    ///
    /// # Errors
    /// If the recording cannot be read at the moment that is to be shown.
    pub fn settle(&mut self) -> Result<(), FormatError> {
        if !std::mem::take(&mut self.growth.has_grown) {
            return Ok(());
        }
        if std::mem::take(&mut self.growth.has_forgotten) {
            self.marks = Marks::default();
            let forgotten = self.state().event() < self.recording.first_event();
            self.growth.notice = (forgotten && !self.following).then_some(MOMENT_FORGOTTEN);
        }
        self.after_growth()
    }

    pub(super) fn after_growth(&mut self) -> Result<(), FormatError> {
        self.stale.timeline = true;
        self.marks.update(&self.recording);
        if self.recording.series(self.device).is_none()
            && let Some(first) = self.recording.devices().next()
        {
            self.device = first;
        }
        self.find_peaks();
        if let Some(link) = self.awaited.take() {
            self.go_to_link(&link)?;
        }
        if self.following {
            self.span.slide_to_end(self.whole());
            return self.go_to(self.recording.end_event());
        }
        // The first moment may be a full state, which has to be gone to like any other.
        if self.state().event() <= self.recording.first_event() {
            return self.go_to(self.recording.first_event());
        }
        Ok(())
    }

    /// A link leads to a moment before what is held.
    pub(super) fn link_leads_before(&mut self, event: u64) {
        self.growth.linked = Some(event);
        self.growth.notice = Some(LINK_LEADS_BEFORE);
    }

    /// What is to be said, once.
    pub fn take_notice(&mut self) -> Option<&'static str> {
        self.growth.notice.take()
    }

    /// How many events are known to be missing, of all that came to this page.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.growth.lost_before + self.recording.lost_events() + self.not_reached()
    }

    /// How many of them were left out for this page, because it or its connection was too slow; the others the program did not record.
    #[must_use]
    pub fn missed_events(&self) -> u64 {
        self.growth.missed_before + self.recording.skipped_events() + self.not_reached()
    }

    /// Events between the end of an earlier connection and the beginning of this one.
    fn not_reached(&self) -> u64 {
        self.growth.expected.map_or(0, |expected| self.recording.first_event().saturating_sub(expected))
    }

    /// The connection to the training program ended; what it sent stays.
    pub fn disconnect(&mut self) {
        if self.origin == Origin::Live {
            // Whoever follows sees the last of it. It cannot fail: the state at the end is at hand.
            drop(self.settle());
            self.origin = Origin::Disconnected;
            self.following = false;
            self.stale.moment = true;
        }
    }

    /// The connection is there again, and goes on where it ended; `following` is whether the newest event is to be on the screen.
    pub fn reconnect(&mut self, following: bool) {
        if self.origin == Origin::Disconnected {
            self.origin = Origin::Live;
            self.following = following;
            self.growth.has_grown = true;
            self.stale.moment = true;
        }
    }
}
