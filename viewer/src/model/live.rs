//! The model's methods for a live recording: receiving it, discarding its oldest part,
//! disconnecting and resuming.

use vramscope_insight::spans::Marks;
use vramscope_trace::FormatError;

use super::live_state::{LiveState, MOMENT_DISCARDED};
use super::state::{Model, Origin};

impl Model {
    /// Empties the model to receive the same live recording again from the start of a new stream,
    /// because the connection could not resume. Keeps the counts of lost and missed events.
    pub fn restart_live(&mut self) {
        let (lost_before, missed_before) = (self.lost_events(), self.missed_events());
        let (resume_event, limit_bytes) = (Some(self.recording.end_event()), self.live.limit_bytes);
        let name = std::mem::take(&mut self.name);
        self.reset(&name, Origin::Live);
        self.live = LiveState { lost_before, missed_before, resume_event, limit_bytes, ..LiveState::default() };
    }

    /// Sets the memory limit of the live recording in bytes. Beyond it, the oldest part of the
    /// recording is discarded, down to half of the limit.
    pub fn set_memory_limit(&mut self, limit_bytes: usize) {
        self.live.limit_bytes = Some(limit_bytes);
    }

    /// Decodes the next bytes of the recording without showing them;
    /// [`apply_received`](Self::apply_received) does. Starts to discard the oldest part if the
    /// recording exceeds its memory limit.
    ///
    /// # Errors
    /// If the bytes are not valid; everything before them stays usable.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.live.has_new_data = true;
        let result = self.recording.push(bytes);
        let limit = self.live.limit_bytes;
        if let Some(limit) = limit.filter(|&limit| self.recording.memory_bytes() > limit && !self.is_discarding()) {
            // Trims to half of the limit, so that on average each event is visited only once more.
            self.recording.start_trim(limit / 2);
        }
        result
    }

    /// Returns true while the oldest part of the live recording is being discarded.
    pub fn is_discarding(&self) -> bool {
        self.recording.is_trimming()
    }

    /// Returns true if the recording takes more than 1.5 times its memory limit, because data
    /// arrives faster than it is discarded.
    pub fn exceeds_memory_limit(&self) -> bool {
        self.live.limit_bytes.is_some_and(|limit| self.recording.memory_bytes() > limit + limit / 2)
    }

    /// Continues to discard the oldest part of the live recording, by about `events` events. Does
    /// nothing if no part is being discarded.
    pub fn continue_discarding(&mut self, events: u64) {
        let (lost, missed) = (self.lost_events(), self.missed_events());
        if self.recording.continue_trim(events) {
            self.live.lost_before = lost.saturating_sub(self.recording.lost_events());
            self.live.missed_before = missed.saturating_sub(self.recording.skipped_events());
            self.live.resume_event = None;
            (self.live.has_new_data, self.live.has_discarded) = (true, true);
        }
    }

    /// Decodes the next bytes of the recording and updates everything that depends on them.
    ///
    /// # Errors
    /// If the bytes are not valid; everything before them stays usable.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let result = self.receive(bytes);
        self.live.has_new_data = true;
        result.and(self.apply_received())
    }

    /// Updates everything that depends on the data received since the last call; does nothing if
    /// none was received.
    ///
    /// # Errors
    /// If the recording cannot be read at the moment to show.
    pub fn apply_received(&mut self) -> Result<(), FormatError> {
        if !std::mem::take(&mut self.live.has_new_data) {
            return Ok(());
        }
        if std::mem::take(&mut self.live.has_discarded) {
            self.marks = Marks::default();
            let is_discarded = self.state().event() < self.recording.first_event();
            self.live.notice = (is_discarded && !self.following).then_some(MOMENT_DISCARDED);
        }
        self.recording_changed()
    }

    /// Updates everything that depends on the recording's length: marks and peaks. Goes to the
    /// moment of a pending link if it has arrived, or to the newest event if the page follows it.
    pub(super) fn recording_changed(&mut self) -> Result<(), FormatError> {
        self.changes.timeline = true;
        self.marks.update(&self.recording);
        if self.recording.series(self.device).is_none()
            && let Some(first) = self.recording.devices().next()
        {
            self.device = first;
        }
        self.find_peaks();
        if let Some(link) = self.pending_link.take() {
            self.go_to_link(&link)?;
        }
        if self.following {
            self.span.scroll_to_end(self.whole());
            return self.go_to(self.recording.end_event());
        }
        // Goes to the first moment to load its memory: the recording may begin with a full state.
        if self.state().event() <= self.recording.first_event() {
            return self.go_to(self.recording.first_event());
        }
        Ok(())
    }

    /// Takes the message to show to the user; `None` if there is no new one.
    pub fn take_notice(&mut self) -> Option<&'static str> {
        self.live.notice.take()
    }

    /// Returns the number of lost and missed events in everything that the page has received, also
    /// in the part that it has discarded. Lost events were not recorded; missed events were skipped
    /// for this page.
    pub fn lost_events(&self) -> u64 {
        self.live.lost_before + self.recording.lost_events() + self.live.unreceived_events(&self.recording)
    }

    /// Returns the number of missed events among [`lost_events`](Self::lost_events): recorded by
    /// the program, but skipped for this page, because it or its connection was too slow.
    pub fn missed_events(&self) -> u64 {
        self.live.missed_before + self.recording.skipped_events() + self.live.unreceived_events(&self.recording)
    }

    /// Marks the live recording as disconnected, because the connection to the program has ended.
    /// Everything received stays; the page no longer follows the newest event.
    pub fn disconnect(&mut self) {
        if self.origin == Origin::Live {
            // Shows the last events to a user who follows. The state at the end is in memory, so
            // this cannot fail.
            drop(self.apply_received());
            self.origin = Origin::Disconnected;
            self.following = false;
            self.changes.moment = true;
        }
    }

    /// Marks the disconnected recording as live again, because a new connection continues where the
    /// last one ended. If `following`, the page follows the newest event; else the moment stays.
    pub fn reconnect(&mut self, following: bool) {
        if self.origin == Origin::Disconnected {
            self.origin = Origin::Live;
            self.following = following;
            self.live.has_new_data = true;
            self.changes.moment = true;
        }
    }
}
