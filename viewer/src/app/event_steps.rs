//! The commands `event 1` and `event -1`: to the next or previous event of the selection, or event
//! that matches the filter of the list of events.

use vramscope_insight::events::{EventListError, MatchSearch};
use vramscope_trace::Allocation;

use crate::view::controls::parse_filter;
use crate::views::events::step_starts;
use crate::views::{ViewCaches, ViewKind};

use super::core::Session;

/// Number of events that a search for the next match visits in one step, at about 50 ns each.
const EVENTS_PER_STEP: u64 = 65_536;

impl Session {
    /// Goes to the next (`forward`) or previous event of the selected allocation; without one, of
    /// the allocations that used the selected address; without a selection, to an event that
    /// matches the filter of the list of events.
    ///
    /// # Errors
    /// If there is no such event, or it cannot be found yet: a message for the user.
    pub(super) fn go_to_event(&mut self, forward: bool) -> Result<(), String> {
        self.model.playback.pause();
        self.analysis.event_search = None;
        match self.model.selection() {
            Some(address) => self.go_to_event_of(address, forward),
            None => {
                self.analysis.event_search = Some(forward);
                self.continue_event_search().map(|_| ())
            }
        }
    }

    /// Goes to the next (`forward`) or previous event of the selected allocation, or of all
    /// allocations that used `address`.
    fn go_to_event_of(&mut self, address: u64, forward: bool) -> Result<(), String> {
        let moment = self.model.state().event();
        let Some(lifetimes) = self.analysis.history.lifetimes(self.model.device()) else {
            return Err("the recording is still being read: try again".to_owned());
        };
        let events = |one: Allocation| [Some(one.first_moment), one.allocated_until, one.active_until];
        let is_ahead = |event: &u64| if forward { *event > moment } else { *event < moment };
        let nearest = |events: &mut dyn Iterator<Item = u64>| if forward { events.min() } else { events.max() };
        let selected = self.model.selected_since().and_then(|since| lifetimes.find(address, since));
        let found = match selected {
            Some((_, one)) => nearest(&mut events(one).into_iter().flatten().filter(is_ahead)),
            None => nearest(&mut lifetimes.history_of(address).flat_map(events).flatten().filter(is_ahead)),
        };
        let subject = if selected.is_some() { "the selected allocation" } else { "the selected address" };
        let event =
            found.ok_or_else(|| format!("{subject} has no {} event", if forward { "later" } else { "earlier" }))?;
        self.model.seek(event).map_err(|error| error.to_string())
    }

    /// Selects the range of moments in which the selected allocation is allocated; without a
    /// selected allocation, the range of the innermost span at the moment on the screen.
    ///
    /// # Errors
    /// If there is neither an allocation nor a span, or the allocation is not known yet: a message
    /// for the user.
    pub(super) fn select_range_of_selection(&mut self) -> Result<(), String> {
        let model = &self.model;
        let end = model.recording().end_event();
        let range = match model.selection() {
            Some(address) => {
                let since = model.selected_since().ok_or("nothing is allocated at the selected address")?;
                let lifetimes = self.analysis.history.lifetimes(model.device());
                let (_, one) = lifetimes
                    .and_then(|lifetimes| lifetimes.find(address, since.max(model.recording().first_event())))
                    .ok_or("the recording is still being read: try again")?;
                (one.first_moment, one.allocated_until.unwrap_or(end))
            }
            None => {
                let spans = model.marks().spans_at(model.recording().info(), model.device(), model.time_ns());
                let span = spans.first().ok_or(
                    "select an allocation, or go to a moment within a span (a named range that the program marked), \
                     to select its range of time",
                )?;
                (*span.event_numbers(end).start(), *span.event_numbers(end).end())
            }
        };
        self.model.select_range(Some(range));
        Ok(())
    }

    /// Continues the search for the next event that matches the filter of the list of events.
    /// Returns true if the search is not finished.
    ///
    /// # Errors
    /// If no event matches, or events cannot be read: a message for the user.
    pub(super) fn continue_event_search(&mut self) -> Result<bool, String> {
        let Some(forward) = self.analysis.event_search else { return Ok(false) };
        let filter = self.analysis.options(ViewKind::Events).filter.clone();
        let query = parse_filter(&filter).map_err(|error| error.text_content());
        let found = query.and_then(|query| {
            self.with_context(ViewKind::Events, |context, _, ViewCaches { shared: caches, .. }| {
                let searches = &mut caches.searches;
                let steps = step_starts(context, searches, &query);
                let mut list = searches.events.found_events(context.recording, &query, steps, context.moment);
                match list.neighbor(context.moment, forward, EVENTS_PER_STEP) {
                    Err(EventListError::NotLoaded { missing }) => {
                        caches.missing.extend(missing);
                        Ok(MatchSearch::Unfinished)
                    }
                    result => result.map_err(|error| error.to_string()),
                }
            })
        });
        if !matches!(found, Ok(MatchSearch::Unfinished)) {
            self.analysis.event_search = None;
        }
        match found? {
            MatchSearch::Unfinished => Ok(self.analysis.caches.shared.missing.is_empty()),
            MatchSearch::Found(event) => {
                self.view_history.commanded("event");
                self.model.seek(event).map_err(|error| error.to_string())?;
                Ok(false)
            }
            MatchSearch::NotFound => {
                let which = if filter.is_empty() { "event" } else { "event that matches the filter" };
                Err(format!("there is no {} {which}", if forward { "later" } else { "earlier" }))
            }
        }
    }
}
