//! The list of the events that match a filter, kept between calls.

use std::sync::Arc;

use vramscope_trace::{Recording, Replay};

use super::recording_identity::RecordingIdentity;
use crate::events::{EventList, EventListError, EventRow, MatchSearch, event_rows};
use crate::history::History;
use crate::query::{Query, ScanProgress};

/// The inputs of a search for events, which begins again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SearchKey {
    identity: RecordingIdentity,
    query: String,
    steps: Arc<[u64]>,
    /// The generation of the categories, if the query is about them.
    categories: u64,
}

/// A search for the events that match a filter, continued in parts.
#[derive(Default)]
pub struct EventSearch {
    kept: Option<(SearchKey, EventList)>,
    /// Reads events without moving the moment on the screen.
    replay: Replay,
    /// Whether a view waits for the rest of the matches.
    is_wanted: bool,
    /// Number of events that were searched when the view was last updated.
    shown: u64,
}

/// The list of events that match a filter, as far as they are found.
pub struct FoundEvents<'a> {
    recording: &'a Recording,
    list: &'a mut EventList,
    replay: &'a mut Replay,
    is_wanted: &'a mut bool,
}

impl EventSearch {
    /// Returns the list of the events that match `query`; a new search begins at the event number
    /// `cursor`. `steps` are the moments at which steps begin.
    pub fn found_events<'a>(
        &'a mut self,
        (recording, history): (&'a Recording, &History),
        query: &Query,
        steps: Arc<[u64]>,
        cursor: u64,
    ) -> FoundEvents<'a> {
        let categories = if query.has_categories() { history.categories_generation() } else { 0 };
        let identity = RecordingIdentity::of(recording);
        let source = SearchKey { identity, query: query.text().to_owned(), steps, categories };
        let kept = self.kept.take().filter(|(known, _)| *known == source);
        let (_, list) = self.kept.insert(kept.unwrap_or_else(|| {
            let matcher = query.compile(recording, &source.steps, history.inferred_categories());
            let list = EventList::new(recording, matcher, cursor);
            (source, list)
        }));
        list.update(recording);
        FoundEvents { recording, list, replay: &mut self.replay, is_wanted: &mut self.is_wanted }
    }

    /// Searches up to about `max_events` more events for the view that waits for them. Returns
    /// whether more can be searched, and whether the view should be updated: ten times while all
    /// events are searched, and at the end.
    pub fn work(&mut self, recording: &Recording, max_events: u64) -> (bool, bool) {
        let Some((_, list)) = self.kept.as_mut().filter(|_| self.is_wanted) else { return (false, false) };
        list.update(recording);
        // The view shows the error when it tries these events again.
        let Ok(progress) = list.step(recording, &mut self.replay, max_events) else {
            self.is_wanted = false;
            return (false, true);
        };
        let is_finished = progress.is_finished();
        let shows = is_finished || progress.done.abs_diff(self.shown) > progress.total / 10;
        if shows {
            self.shown = progress.done;
        }
        self.is_wanted = !is_finished;
        (!is_finished, shows)
    }
}

impl FoundEvents<'_> {
    /// Searches about `max_events` more events, and returns the progress of the search.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn step(&mut self, max_events: u64) -> Result<ScanProgress, EventListError> {
        self.list.step(self.recording, self.replay, max_events)
    }

    /// Requests that the search continues [between frames](EventSearch::work) until it is complete.
    pub fn want_all(&mut self) {
        *self.is_wanted = true;
    }

    /// Returns the progress of the search.
    #[must_use]
    pub fn progress(&self) -> ScanProgress {
        self.list.progress()
    }

    /// Returns the number of matching events found so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.list.len()
    }

    /// Returns the numbers of up to `count` matching events from position `offset` on.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn numbers(&mut self, offset: u64, count: u64) -> Result<Vec<u64>, EventListError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.list.numbers(self.recording, self.replay, offset, count)
    }

    /// Returns the rows of the events with these numbers. Blocks that they free are looked up in
    /// `history` if it has been read far enough.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn rows(&mut self, history: &History, numbers: &[u64]) -> Result<Vec<EventRow>, EventListError> {
        let is_known = numbers.iter().max().is_none_or(|&last| last <= history.until());
        let known = Some(history).filter(|history| is_known && history.first_event() <= self.recording.first_event());
        event_rows(self.recording, self.replay, known, numbers.iter().copied())
    }

    /// Returns the position in the list of the last matching event up to `moment`, as far as the
    /// events are found; `None` if no event up to it matches.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn position_at(&mut self, moment: u64) -> Result<Option<u64>, EventListError> {
        let after = self.list.position_of(self.recording, self.replay, moment.saturating_add(1))?;
        Ok(after.checked_sub(1))
    }

    /// Searches for the next (`forward`) or previous matching event from `moment` on, among about
    /// `max_events` events.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn neighbor(&mut self, moment: u64, forward: bool, max_events: u64) -> Result<MatchSearch, EventListError> {
        if forward {
            self.list.next_match(self.recording, self.replay, moment, max_events)
        } else {
            self.list.previous_match(self.recording, self.replay, moment, max_events)
        }
    }
}
